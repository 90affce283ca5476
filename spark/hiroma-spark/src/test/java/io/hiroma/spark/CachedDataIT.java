package io.hiroma.spark;

import static io.hiroma.spark.Cluster.PARTITIONS;
import static io.hiroma.spark.Cluster.PARTITION_BYTES;
import static io.hiroma.spark.Cluster.SOME;
import static io.hiroma.spark.Cluster.await;
import static io.hiroma.spark.Cluster.check;
import static io.hiroma.spark.Cluster.look;
import static io.hiroma.spark.Cluster.onRequest;
import static io.hiroma.spark.Cluster.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.hiroma.jvm.Natives;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;

/** The policy part in one long-lived application: each kind of cached data, what is given back, and an executor that is killed. */
@Timeout(600)
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class CachedDataIT {
  private static final long GIVEN_BACK_MILLIS_MAX = 5_000;
  /** Below the target directory: executors may write there until they have ended. */
  private static Path metrics;
  private static Complaints complaints;
  private static SparkSession session;
  private static JavaSparkContext context;

  @BeforeAll
  static void start() throws IOException {
    complaints = Complaints.listen();
    metrics = Files.createTempDirectory(Files.createDirectories(Path.of(System.getenv("SPARK_HOME"))), "metrics");
    SparkConf conf = Cluster.conf(Policy.PART, 1, 1024).set("spark.hiroma.typo", "1")
        .set("spark.memory.offHeap.enabled", "true").set("spark.memory.offHeap.size", "400m")
        .set("spark.sql.inMemoryColumnarStorage.compressed", "false")
        .set("spark.ui.enabled", "true").set("spark.ui.port", "0")
        .set("spark.metrics.conf.driver.sink.prometheusServlet.class", "org.apache.spark.metrics.sink.PrometheusServlet")
        .set("spark.metrics.conf.driver.sink.prometheusServlet.path", "/metrics/prometheus")
        .set("spark.metrics.conf.executor.sink.csv.class", "org.apache.spark.metrics.sink.CsvSink")
        .set("spark.metrics.conf.executor.sink.csv.directory", metrics.toString()).set("spark.metrics.conf.executor.sink.csv.period", "1");
    session = SparkSession.builder().config(conf).getOrCreate();
    context = JavaSparkContext.fromSparkContext(session.sparkContext());
  }

  @AfterAll
  static void stop() {
    if (context != null) {
      context.close();
    }
    complaints.close();
  }

  private static JavaRDD<long[]> numbers(StorageLevel level) {
    return numbers(level, PARTITION_BYTES);
  }

  private static JavaRDD<long[]> numbers(StorageLevel level, int bytes) {
    return Probe.numbers(context, PARTITIONS, bytes).persist(level);
  }

  @Test
  @Order(1)
  void aTypingErrorInAKeyIsNamed() {
    assertTrue(complaints.said("there is no spark.hiroma.typo; did you mean spark.hiroma.policy?"), complaints::toString);
  }

  @Test
  @Order(2)
  void serialisedDataIsOnHugePagesAndHardlyAnythingElse() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY_SER());
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe probe = await(context, "serialised", seen -> !onRequest(seen) || seen.chunkHugeBytes() > seen.chunkBytes() * 85 / 100);
    assertTrue(probe.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES, probe::toString);
    assertTrue(probe.usage().cachedBytes() >= PARTITIONS * (long) PARTITION_BYTES, probe::toString);
    if (onRequest(probe)) {
      assertEquals("part", probe.usage().policy());
      assertTrue(probe.hugeBytes() < probe.chunkBytes() * 11 / 10, probe::toString);
      assertTrue(probe.usage().cachedHugeBytes() >= probe.chunkHugeBytes() * 9 / 10, probe::toString);
    }
    check(cached, PARTITIONS, PARTITION_BYTES);
    // No collection has to come by first.
    givenBack("serialised", cached, seen -> seen.chunkBytes() < SOME && !onRequest(seen) || seen.hugeBytes() == 0);
  }

  /** Drops what is cached, and waits for its huge pages to go: they do so within the time that the guide names. */
  private static void givenBack(String what, JavaRDD<?> cached, Predicate<Probe> gone) {
    cached.unpersist(true);
    long began = System.nanoTime();
    await(context, what + ", unpersisted", gone);
    long millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
    System.out.println(what + ": given back within " + millis + " ms");
    assertTrue(millis <= GIVEN_BACK_MILLIS_MAX, () -> what + ": " + millis + " ms");
  }

  @Test
  @Order(3)
  void dataOffTheHeapIsFoundAndGivenBack() {
    for (String what : List.of("off-heap", "off-heap, again")) {
      JavaRDD<long[]> cached = numbers(StorageLevel.OFF_HEAP());
      check(cached, PARTITIONS, PARTITION_BYTES);
      Probe first = look(context, what);
      assertTrue(first.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES, first::toString);
      if (onRequest(first)) {
        await(context, what, seen -> seen.chunkHugeBytes() > seen.chunkBytes() * 85 / 100);
      }
      check(cached, PARTITIONS, PARTITION_BYTES);
      givenBack(what, cached, seen -> seen.chunkBytes() < SOME && (!onRequest(seen) || seen.hugeBytes() < SOME));
    }
  }

  /**
   * What jobs do by themselves when they go on: the collector comes by. A full collection leaves regions where they are that are nearly
   * full, so that some share their huge page with one that is not old: on JDK 25 a third of a DataFrame's were such once.
   */
  private static boolean collect(JavaSparkContext context) {
    return context.parallelize(List.of(1), 1).map(any -> {
      System.gc();
      return true;
    }).first();
  }

  /** The pieces and the value of a broadcast lie in the same store as cached data. */
  @Test
  @Order(3)
  void broadcastsStayOnSmallPages() {
    byte[] bytes = new byte[PARTITION_BYTES];
    new java.util.Random(1).nextBytes(bytes);
    org.apache.spark.broadcast.Broadcast<byte[]> broadcast = context.broadcast(bytes);
    assertEquals(bytes.length, context.parallelize(List.of(1), 1).map(any -> broadcast.value().length).first());
    collect(context);
    // As many looks as others take to find something huge.
    for (int number = 0; number < 10; number++) {
      Probe probe = look(context, "broadcast");
      assertTrue(probe.chunkBytes() >= PARTITION_BYTES, probe::toString);
      assertTrue(!onRequest(probe) || probe.hugeBytes() == 0, probe::toString);
    }
    broadcast.destroy();
  }

  @Test
  @Order(4)
  void deserialisedObjectsAreHugeOnceTheyAreOld() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY());
    check(cached, PARTITIONS, PARTITION_BYTES);
    if (onRequest(look(context, "objects"))) {
      collect(context);
      await(context, "objects", seen -> seen.usage().cachedHugeBytes() > seen.usage().cachedBytes() / 2
          && seen.usage().cachedBytes() >= PARTITION_BYTES);
    }
    check(cached, PARTITIONS, PARTITION_BYTES);
    cached.unpersist(true);
  }

  /** What stays cached has so many objects that no look sees all of them. */
  @Test
  @Order(5)
  void whatIsDroppedBesideManyObjectsIsGivenBack() {
    int bytes = 64 << 20;
    JavaRDD<long[]> kept = numbers(StorageLevel.MEMORY_ONLY(), bytes);
    check(kept, PARTITIONS, bytes);
    JavaRDD<long[]> dropped = numbers(StorageLevel.MEMORY_ONLY_SER());
    check(dropped, PARTITIONS, PARTITION_BYTES);
    if (onRequest(look(context, "many objects"))) {
      await(context, "many objects", seen -> seen.chunkHugeBytes() > seen.chunkBytes() * 85 / 100);
      givenBack("many objects", dropped, seen -> seen.chunkBytes() < SOME && seen.usage().otherHugeBytes() < PARTITION_BYTES);
    }
    check(kept, PARTITIONS, bytes);
    dropped.unpersist(true);
    kept.unpersist(true);
  }

  @Test
  @Order(5)
  void columnsOfADataFrameAreHugeOnceTheyAreOld() {
    long rows = 3_000_000;
    Dataset<Row> cached = session.range(0, rows, 1, PARTITIONS).selectExpr("id", "id * 3 as three", "hash(id) as h").persist();
    assertEquals(rows, cached.count());
    if (onRequest(look(context, "DataFrame"))) {
      collect(context);
      await(context, "DataFrame", seen -> seen.usage().cachedHugeBytes() > seen.usage().cachedBytes() / 3
          && seen.usage().cachedBytes() >= PARTITION_BYTES);
    }
    assertEquals(rows * (rows - 1) / 2, cached.selectExpr("sum(id)").first().getLong(0));
    cached.unpersist(true);
  }

  @Test
  @Order(6)
  void theWebInterfaceShowsWhereTheMemoryOfExecutorsIs() throws IOException, InterruptedException {
    String address = context.sc().uiWebUrl().get() + "/hiroma/";
    until(() -> get(address).contains("class=\"hiroma-map\""), () -> get(address));
    String page = get(address);
    // Spark's frame, an executor that is as asked for, and regions of each kind that there must be.
    for (String wanted : List.of("<a class=\"nav-link\" href=\"/jobs/\">", "Executor 0: part<", "<polyline", "native calls: " + Natives.way() + ";", "fill=\"#1f6fb5\"|fill=\"#cfe2f3\"")) {
      assertTrue(Stream.of(wanted.split("\\|")).anyMatch(page::contains), () -> wanted + " is not in\n" + page.substring(0, Math.min(page.length(), 4_000)));
    }
    browse(address);
  }

  /** What a real browser makes of the page: it draws both pictures of the executor. */
  private static void browse(String address) throws IOException, InterruptedException {
    Path profile = Files.createDirectory(metrics.resolve("profile"));
    List<String> command = List.of("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--user-data-dir=" + profile, "--virtual-time-budget=5000", "--dump-dom", address);
    Path seen = metrics.resolve("dom.html");
    Process browser;
    try {
      browser = new ProcessBuilder(command).redirectOutput(seen.toFile()).redirectError(ProcessBuilder.Redirect.DISCARD).start();
    } catch (IOException notThere) {
      System.out.println("skipped: there is no chromium to look at the page with");
      return;
    }
    try {
      if (!browser.waitFor(60, TimeUnit.SECONDS)) {
        System.out.println("skipped: chromium does not come to an end here");
        return;
      }
      String dom = Files.readString(seen);
      assertTrue(dom.contains("class=\"hiroma-map\"") && dom.contains("class=\"hiroma-lines\""), dom);
    } finally {
      browser.descendants().forEach(ProcessHandle::destroyForcibly);
      browser.destroyForcibly();
    }
  }

  private static String get(String address) {
    try {
      HttpRequest request = HttpRequest.newBuilder(URI.create(address)).timeout(Duration.ofSeconds(60)).build();
      return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    } catch (IOException | InterruptedException error) {
      throw new AssertionError(address, error);
    }
  }

  @Test
  @Order(7)
  void metricsGoThroughSparksSinks() {
    String address = context.sc().uiWebUrl().get() + "/metrics/prometheus/";
    // Of the driver: what executor 0 has reported.
    for (String name : Usage.FIGURES.keySet()) {
      String wanted = "_driver_plugin_io_hiroma_spark_HiromaPlugin_executor_0_" + name + "_Value";
      until(() -> get(address).contains(wanted), () -> wanted + " is not in\n" + get(address));
    }
    // Of the executor itself, through a sink that writes.
    for (String name : Usage.FIGURES.keySet()) {
      String wanted = ".0.plugin." + HiromaPlugin.class.getName() + "." + name + ".csv";
      until(() -> {
        try (Stream<Path> files = Files.walk(metrics)) {
          return files.anyMatch(file -> file.toString().endsWith(wanted) && file.toFile().length() > 0);
        }
      }, () -> "no file ends in " + wanted);
    }
  }

  @Test
  @Order(10)
  void anExecutorThatIsKilledComesBackAndDataIsCachedAgain() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY_SER());
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe before = look(context, "before");
    ProcessHandle.of(before.pid()).orElseThrow().destroyForcibly();
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe after = await(context, "after", seen -> !seen.executor().equals(before.executor())
        && seen.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES);
    if (onRequest(after)) {
      assertEquals("part", after.usage().policy());
      await(context, "after", seen -> seen.chunkHugeBytes() > seen.chunkBytes() / 2);
    }
  }
}
