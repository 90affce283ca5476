package io.hiroma.spark.bench;

import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/** k-means (the paper's future work): Lloyd's algorithm over cached points. */
final class Clusters implements Workload {
  private static final int DIMENSIONS = 16;
  private static final int CENTRES = 8;
  /** Points that are kept in one array. */
  private static final int BATCH = 64;
  /** Of a sum: the coordinates, and how many points. */
  private static final int WIDTH = DIMENSIONS + 1;

  private final JavaRDD<double[]> points;
  /** One behind the other, as points in a batch are. */
  private double[] centres;

  Clusters(JavaSparkContext context, Storage storage, int partitions, long bytes) {
    int batches = (int) (bytes / partitions / (BATCH * DIMENSIONS * Double.BYTES));
    points = context.parallelize(IntStream.range(0, partitions).boxed().toList(), partitions)
        .flatMap(part -> IntStream.range(0, batches).mapToObj(batch -> batch(part, batch)).iterator()).persist(storage.level());
    centres = Arrays.copyOf(batch(0, 0), CENTRES * DIMENSIONS);
  }

  private static double[] batch(long part, long batch) {
    double[] values = new double[BATCH * DIMENSIONS];
    Arrays.setAll(values, place -> {
      long cluster = Micro.mixed((part << 44) + (batch << 16) + place / DIMENSIONS) & (CENTRES - 1);
      return cluster * 10 + (Micro.mixed((part << 44) + (batch << 16) + (1 << 15) + place) >>> 11) * 0x1p-53;
    });
    return values;
  }

  @Override
  public void cache() {
    points.count();
  }

  @Override
  public double iterate() {
    double[] from = centres;
    double[] sums = points.mapPartitions(batches -> {
      double[] found = new double[CENTRES * WIDTH];
      batches.forEachRemaining(batch -> assign(batch, from, found));
      return java.util.List.of(found).iterator();
    }).reduce((a, b) -> IntStream.range(0, a.length).mapToDouble(place -> a[place] + b[place]).toArray());
    double[] next = new double[CENTRES * DIMENSIONS];
    Arrays.setAll(next, place -> {
      double count = sums[place / DIMENSIONS * WIDTH + DIMENSIONS];
      return count == 0 ? from[place] : sums[place / DIMENSIONS * WIDTH + place % DIMENSIONS] / count;
    });
    centres = next;
    return IntStream.range(0, CENTRES).mapToDouble(centre -> sums[centre * WIDTH + DIMENSIONS]).sum();
  }

  /** Adds each point of {@code batch} to the sum of the centre that is nearest. */
  private static void assign(double[] batch, double[] centres, double[] sums) {
    for (int at = 0; at < batch.length; at += DIMENSIONS) {
      int nearest = 0;
      double least = Double.MAX_VALUE;
      for (int centre = 0; centre < CENTRES; centre++) {
        double distance = 0;
        for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
          double difference = batch[at + dimension] - centres[centre * DIMENSIONS + dimension];
          distance += difference * difference;
        }
        if (distance < least) {
          least = distance;
          nearest = centre;
        }
      }
      for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
        sums[nearest * WIDTH + dimension] += batch[at + dimension];
      }
      sums[nearest * WIDTH + DIMENSIONS]++;
    }
  }

  @Override
  public boolean repeats() {
    // The number of points.
    return true;
  }
}
