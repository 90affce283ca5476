package io.hiroma.spark.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Serializable;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * The driver of one job of {@code hiroma bench spark}. Arguments: workload, storage, partitions, MiB of data, executors.
 *
 * <p>It does what lines on its standard input say, and answers each with one line of JSON that {@link #ANSWER} stands before:
 * {@code cache}: caches the data; {@code iterate N}: goes through it N times; {@code settle}: has it moved to where it stays, and looks;
 * {@code look}: where the cached data lies. It ends when the input does. Its first answer is a look, when the executors are there.
 */
public final class Job {
  static final String ANSWER = "@ ";
  /** Attempts to reach every executor. */
  private static final int ATTEMPTS = 100;

  private final JavaSparkContext context;
  private final Workload workload;
  private final int executors;
  private Double expected;

  private Job(JavaSparkContext context, Workload workload, int executors) {
    this.context = context;
    this.workload = workload;
    this.executors = executors;
  }

  public static void main(String[] arguments) throws IOException {
    int partitions = Integer.parseInt(arguments[2]);
    long bytes = Long.parseLong(arguments[3]) << 20;
    try (JavaSparkContext context = new JavaSparkContext(new SparkConf().setAppName("hiroma bench spark"))) {
      Workload workload = workload(context, arguments[0], Storage.of(arguments[1]), partitions, bytes);
      new Job(context, workload, Integer.parseInt(arguments[4])).serve();
    }
  }

  private static Workload workload(JavaSparkContext context, String name, Storage storage, int partitions, long bytes) {
    return switch (name) {
      case "micro" -> storage == Storage.DATAFRAME ? new Table(context, storage, partitions, bytes) : new Micro(context, storage, partitions, bytes);
      case "pagerank" -> new PageRank(context, storage, partitions, bytes);
      case "k-means" -> new Clusters(context, storage, partitions, bytes);
      default -> throw new IllegalArgumentException("there is no workload " + name);
    };
  }

  private void serve() throws IOException {
    answer(looks());
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, java.nio.charset.StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "cache" -> answer("{\"seconds\":[" + seconds(workload::cache) + "]}");
        case "iterate" -> answer(IntStream.range(0, Integer.parseInt(words[1])).mapToObj(turn -> Double.toString(seconds(this::iterate)))
            .collect(Collectors.joining(",", "{\"seconds\":[", "]}")));
        case "settle" -> {
          // Young objects are old after two collections.
          onAll(() -> {
            System.gc();
            System.gc();
            return Look.here();
          });
          answer(looks());
        }
        case "look" -> answer(looks());
        default -> throw new IllegalArgumentException("there is no command " + line);
      }
    }
  }

  private static void answer(String json) {
    System.out.println(ANSWER + json);
  }

  private static double seconds(Runnable work) {
    long started = System.nanoTime();
    work.run();
    return (System.nanoTime() - started) / 1e9;
  }

  private void iterate() {
    double result = workload.iterate();
    if (Double.isNaN(result) || workload.repeats() && expected != null && expected != result) {
      throw new IllegalStateException("an iteration came to " + result + " and one before to " + expected + ": the data has changed");
    }
    expected = result;
  }

  /** What each executor sees. */
  private String looks() {
    return onAll(Look::here).stream().map(look -> "{\"pid\":" + look.pid() + ",\"policy\":\"" + look.policy() + "\",\"gc_ms\":" + look.gcMillis()
        + ",\"runs\":" + Arrays.toString(look.runs()) + "}").collect(Collectors.joining(",", "{\"executors\":[", "]}"));
  }

  /** Something that is done in an executor, which looks in the end. */
  private interface Deed extends Callable<Look>, Serializable {}

  /** Has every executor do {@code deed}, at least once. */
  private Collection<Look> onAll(Deed deed) {
    TreeMap<Long, Look> looks = new TreeMap<>();
    for (int attempt = 0; looks.size() < executors && attempt < ATTEMPTS; attempt++) {
      // As many tasks as there are executors with a processor each; each stays until the others have begun elsewhere.
      context.parallelize(IntStream.range(0, executors).boxed().toList(), executors).mapPartitions(any -> {
        Look look = deed.call();
        Thread.sleep(100);
        return List.of(look).iterator();
      }).collect().forEach(look -> looks.put(look.pid(), look));
    }
    if (looks.size() < executors) {
      throw new IllegalStateException("only " + looks.size() + " of " + executors + " executors can be reached");
    }
    return looks.values();
  }
}
