package io.hiroma.spark.bench;

import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/** The paper's microbenchmark (section 6): every iteration reads all that is cached, and does little else. */
final class Micro implements Workload {
  /** Numbers in one array. */
  private static final int NUMBERS = 1024;

  private final JavaRDD<long[]> data;

  Micro(JavaSparkContext context, Storage storage, int partitions, long bytes) {
    int arrays = (int) (bytes / partitions / (NUMBERS * Long.BYTES));
    data = context.parallelize(IntStream.range(0, partitions).boxed().toList(), partitions)
        .flatMap(part -> IntStream.range(0, arrays).mapToObj(array -> array(part, array)).iterator()).persist(storage.level());
  }

  private static long[] array(long part, long array) {
    long[] values = new long[NUMBERS];
    Arrays.setAll(values, place -> mixed((part << 44) + (array << 16) + place));
    return values;
  }

  /** A fixed hash of a number (the finaliser of SplitMix64). */
  static long mixed(long number) {
    long bits = (number ^ (number >>> 30)) * 0xbf58476d1ce4e5b9L;
    bits = (bits ^ (bits >>> 27)) * 0x94d049bb133111ebL;
    return bits ^ (bits >>> 31);
  }

  @Override
  public void cache() {
    data.count();
  }

  @Override
  public double iterate() {
    return data.map(values -> Arrays.stream(values).sum()).reduce(Long::sum);
  }

  @Override
  public boolean repeats() {
    return true;
  }
}
