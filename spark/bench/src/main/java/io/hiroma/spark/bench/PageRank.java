package io.hiroma.spark.bench;

import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;

/** PageRank (the paper's future work): the links are cached, the ranks are sent round. */
final class PageRank implements Workload {
  private static final int PAGES = 1 << 18;
  /** Links of each page. */
  private static final int LINKS = 16;
  /** Pages whose links are kept in one array. */
  private static final int BATCH = 128;
  private static final double DAMPING = 0.85;

  private final JavaSparkContext context;
  private final JavaRDD<int[]> links;
  private double[] ranks = new double[PAGES];

  PageRank(JavaSparkContext context, Storage storage, int partitions, long bytes) {
    this.context = context;
    int batches = (int) (bytes / partitions / (BATCH * (LINKS + 1) * Integer.BYTES));
    links = context.parallelize(IntStream.range(0, partitions).boxed().toList(), partitions)
        .flatMap(part -> IntStream.range(0, batches).mapToObj(batch -> batch(part, batch)).iterator()).persist(storage.level());
    Arrays.fill(ranks, 1.0 / PAGES);
  }

  /** For each of some pages its number and where its links lead: to few pages often, to most seldom. */
  private static int[] batch(long part, long batch) {
    int[] numbers = new int[BATCH * (LINKS + 1)];
    for (int place = 0; place < numbers.length; place++) {
      long random = Micro.mixed((part << 44) + (batch << 16) + place);
      int page = (int) (random & (PAGES - 1));
      numbers[place] = place % (LINKS + 1) == 0 ? page : page & (int) (random >>> 40);
    }
    return numbers;
  }

  @Override
  public void cache() {
    links.count();
  }

  @Override
  public double iterate() {
    Broadcast<double[]> sent = context.broadcast(ranks);
    double[] next = links.mapPartitions(batches -> List.of(contributions(batches, sent.value())).iterator()).reduce(PageRank::add);
    sent.destroy();
    double given = Arrays.stream(next).sum();
    ranks = Arrays.stream(next).map(rank -> (1 - DAMPING) / PAGES + DAMPING * rank / given).toArray();
    return Arrays.stream(ranks).sum();
  }

  private static double[] contributions(Iterator<int[]> batches, double[] ranks) {
    double[] given = new double[PAGES];
    while (batches.hasNext()) {
      int[] numbers = batches.next();
      for (int at = 0; at < numbers.length; at += LINKS + 1) {
        double share = ranks[numbers[at]] / LINKS;
        for (int link = at + 1; link <= at + LINKS; link++) {
          given[numbers[link]] += share;
        }
      }
    }
    return given;
  }

  private static double[] add(double[] a, double[] b) {
    double[] sums = new double[PAGES];
    Arrays.setAll(sums, page -> a[page] + b[page]);
    return sums;
  }

  @Override
  public boolean repeats() {
    return false;
  }
}
