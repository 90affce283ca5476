package io.hiroma.spark;

import static io.hiroma.spark.Cluster.PARTITIONS;
import static io.hiroma.spark.Cluster.PARTITION_BYTES;
import static io.hiroma.spark.Cluster.await;
import static io.hiroma.spark.Cluster.check;
import static io.hiroma.spark.Cluster.look;
import static io.hiroma.spark.Cluster.onRequest;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Caching and dropping again and again leaves nothing over; for a minute, or as long as {@code hiroma.soak.seconds} says. */
@Timeout(1_800)
class GrowthIT {
  private static final long SECONDS = Long.getLong("hiroma.soak.seconds", 60);
  private static final int BYTES = PARTITION_BYTES / 4;
  private static final long LEFT_MAX = 4L << 20;
  private static final long ROWS = 1_000_000;
  /** What the memory of two runs may differ by. */
  private static final double GROWTH_MAX = 1.05;

  /** All of the heap is there from the beginning, so that what grows is something else. */
  private static SparkConf conf() throws IOException {
    return Cluster.conf(Policy.PART, 1, 1024).set("spark.executor.extraJavaOptions", "-Xms1024m -XX:+AlwaysPreTouch")
        .set("spark.memory.offHeap.enabled", "true").set("spark.memory.offHeap.size", "400m");
  }

  private static void round(SparkSession session, JavaSparkContext context) {
    for (StorageLevel level : List.of(StorageLevel.MEMORY_ONLY_SER(), StorageLevel.OFF_HEAP(), StorageLevel.MEMORY_ONLY())) {
      JavaRDD<long[]> cached = Probe.numbers(context, PARTITIONS, BYTES).persist(level);
      check(cached, PARTITIONS, BYTES);
      check(cached, PARTITIONS, BYTES);
      cached.unpersist(true);
    }
    Dataset<Row> rows = session.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "id * 3 as three").persist();
    assertEquals(ROWS * (ROWS - 1) / 2, rows.selectExpr("sum(id)").first().getLong(0));
    rows.unpersist(true);
  }

  @Test
  void cachingAndDroppingLeavesNothingOver() throws IOException {
    SparkSession session = SparkSession.builder().config(conf()).getOrCreate();
    try (JavaSparkContext context = JavaSparkContext.fromSparkContext(session.sparkContext())) {
      List<Long> resident = new ArrayList<>();
      long began = System.nanoTime();
      while (System.nanoTime() - began < TimeUnit.SECONDS.toNanos(SECONDS) || resident.size() < 3) {
        round(session, context);
        Probe left = await(context, "round " + resident.size(), seen -> !onRequest(seen) || seen.hugeBytes() < LEFT_MAX);
        resident.add(left.residentBytes());
      }
      // The first third warms up.
      int third = resident.size() / 3;
      long before = most(resident.subList(third, resident.size() - third));
      long after = most(resident.subList(resident.size() - third, resident.size()));
      assertTrue(after <= before * GROWTH_MAX, () -> "the executor has grown: " + resident);
      Probe last = look(context, "end");
      assertTrue(!onRequest(last) || last.usage().policy().equals("part"), last::toString);
    }
  }

  private static long most(List<Long> numbers) {
    return numbers.stream().mapToLong(Long::longValue).max().orElseThrow();
  }
}
