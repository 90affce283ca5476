package io.hiroma.spark.bench;

import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** The same as {@link Micro} with a DataFrame: columns of numbers, summed up. */
final class Table implements Workload {
  private static final int COLUMNS = 8;

  private final Dataset<Row> data;

  Table(JavaSparkContext context, Storage storage, int partitions, long bytes) {
    SparkSession session = SparkSession.builder().sparkContext(context.sc()).getOrCreate();
    // Hashes: nothing that columns could be compressed by.
    data = session.range(0, bytes / (COLUMNS * Long.BYTES), 1, partitions).selectExpr(columns("xxhash64(id, %d) AS c%<d")).persist(storage.level());
  }

  private static String[] columns(String form) {
    return IntStream.range(0, COLUMNS).mapToObj(column -> String.format(form, column)).toArray(String[]::new);
  }

  @Override
  public void cache() {
    data.count();
  }

  @Override
  public double iterate() {
    Row sums = data.selectExpr(columns("sum(c%d)")).first();
    return IntStream.range(0, COLUMNS).mapToLong(sums::getLong).sum();
  }

  @Override
  public boolean repeats() {
    return true;
  }
}
