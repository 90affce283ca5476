package io.hiroma.spark;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.StorageLevel;

/**
 * A job as anybody might write it: k-means (Lloyd's algorithm) over cached points. Nothing in it knows of huge pages but the last lines,
 * which print where the memory went. Arguments: partitions, MiB of points in each, iterations.
 */
public final class KMeans {
  static final String RESULT = "RESULT";
  private static final int DIMENSIONS = 16;
  private static final int CLUSTERS = 8;
  /** Points that are kept in one array. */
  private static final int BATCH = 256;

  private KMeans() {}

  public static void main(String[] arguments) {
    int partitions = Integer.parseInt(arguments[0]);
    int batches = Integer.parseInt(arguments[1]) * (1 << 20) / (BATCH * DIMENSIONS * 8);
    int iterations = Integer.parseInt(arguments[2]);
    try (JavaSparkContext context = new JavaSparkContext(new SparkConf())) {
      JavaRDD<double[]> points = context.parallelize(IntStream.range(0, partitions).boxed().toList(), partitions)
          .flatMap(part -> IntStream.range(0, batches).mapToObj(batch -> batch(part, batch)).iterator())
          .persist(StorageLevel.MEMORY_ONLY_SER());
      double[][] centres = split(points.first(), CLUSTERS);
      points.count();
      double[] seconds = new double[iterations];
      for (int iteration = 0; iteration < iterations; iteration++) {
        long started = System.nanoTime();
        centres = step(points, centres);
        seconds[iteration] = (System.nanoTime() - started) / 1e9;
      }
      Arrays.sort(seconds);
      // One for each executor that holds points.
      TreeMap<String, LinkedHashMap<String, String>> usages = new TreeMap<>();
      for (LinkedHashMap<String, String> usage : points.mapPartitions(any -> List.of(Usage.here().message()).iterator()).collect()) {
        usages.put(usage.get("executor"), usage);
      }
      usages.values().forEach(usage -> System.out.println(RESULT + " " + seconds[iterations / 2] + " " + String.join(" ", usage.values())));
    }
  }

  private static double[] batch(int part, int batch) {
    Random random = new Random(part * 1_000_003L + batch);
    double[] values = new double[BATCH * DIMENSIONS];
    for (int point = 0; point < BATCH; point++) {
      int cluster = random.nextInt(CLUSTERS);
      for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
        values[point * DIMENSIONS + dimension] = cluster * 10 + random.nextDouble();
      }
    }
    return values;
  }

  private static double[][] split(double[] values, int points) {
    double[][] found = new double[points][];
    Arrays.setAll(found, point -> Arrays.copyOfRange(values, point * DIMENSIONS, (point + 1) * DIMENSIONS));
    return found;
  }

  /** One iteration: the means of the points that are nearest to each of {@code centres}. */
  private static double[][] step(JavaRDD<double[]> points, double[][] centres) {
    double[][] sums = points.map(batch -> assign(batch, centres)).treeReduce(KMeans::add);
    double[][] next = new double[centres.length][];
    Arrays.setAll(next, centre -> sums[centre][DIMENSIONS] == 0 ? centres[centre]
        : Arrays.stream(sums[centre], 0, DIMENSIONS).map(sum -> sum / sums[centre][DIMENSIONS]).toArray());
    return next;
  }

  /** For each centre the sum of the points that are nearest to it, and how many those are. */
  private static double[][] assign(double[] batch, double[][] centres) {
    double[][] sums = new double[centres.length][DIMENSIONS + 1];
    for (int at = 0; at < batch.length; at += DIMENSIONS) {
      int nearest = 0;
      double least = Double.MAX_VALUE;
      for (int centre = 0; centre < centres.length; centre++) {
        double distance = 0;
        for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
          double difference = batch[at + dimension] - centres[centre][dimension];
          distance += difference * difference;
        }
        if (distance < least) {
          least = distance;
          nearest = centre;
        }
      }
      for (int dimension = 0; dimension < DIMENSIONS; dimension++) {
        sums[nearest][dimension] += batch[at + dimension];
      }
      sums[nearest][DIMENSIONS]++;
    }
    return sums;
  }

  private static double[][] add(double[][] a, double[][] b) {
    double[][] sums = new double[a.length][DIMENSIONS + 1];
    for (int centre = 0; centre < a.length; centre++) {
      for (int place = 0; place <= DIMENSIONS; place++) {
        sums[centre][place] = a[centre][place] + b[centre][place];
      }
    }
    return sums;
  }
}
