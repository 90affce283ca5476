package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A cluster with an executor of its own, a stock Spark, and the jar as users get it. */
@Timeout(300)
class CachedDataIT {
  private static final int PARTITIONS = 3;
  private static final int PARTITION_BYTES = 40 << 20;

  @BeforeAll
  static void sparkHome() throws IOException {
    Files.createDirectories(Path.of(System.getenv("SPARK_HOME"), "jars"));
  }

  private static SparkConf conf(Policy policy, String options) {
    SparkConf conf = new SparkConf().setAppName("cached data").setMaster("local-cluster[1,1,1024]")
        .set("spark.plugins", HiromaPlugin.class.getName()).set("spark.hiroma.policy", policy.word())
        .set("spark.jars", System.getProperty("hiroma.jars")).set("spark.executor.memory", "1g").set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1").set("spark.hiroma.typo", "1");
    return options.isEmpty() ? conf : conf.set("spark.executor.extraJavaOptions", options);
  }

  private static Probe cache(SparkConf conf) {
    try (JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> cached = Probe.numbers(context, PARTITIONS, PARTITION_BYTES).persist(StorageLevel.MEMORY_ONLY_SER());
      assertEquals(PARTITIONS * (long) PARTITION_BYTES, cached.map(piece -> piece.length * 8L).reduce(Long::sum));
      Probe probe = look(context, conf.get("spark.hiroma.policy"));
      assertTrue(probe.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES, probe::toString);
      assertTrue(probe.usage().cachedBytes() >= probe.chunkBytes(), probe::toString);
      return probe;
    }
  }

  private static Probe look(JavaSparkContext context, String what) {
    Probe probe = context.parallelize(List.of(1), 1).map(any -> Probe.here()).first();
    System.out.println(what + ": " + probe);
    return probe;
  }

  private static boolean unwanted(Probe probe) {
    if (!probe.thp().equals("madvise")) {
      System.out.println("skipped: transparent huge pages are \"" + probe.thp() + "\" and not \"madvise\"");
      return true;
    }
    return false;
  }

  @Test
  void offPutsNothingOnHugePages() {
    Probe probe = cache(conf(Policy.OFF, ""));
    assertEquals("off", probe.usage().policy());
    if (probe.thp().equals("madvise")) {
      assertEquals(0, probe.hugeBytes(), probe::toString);
    }
  }

  @Test
  void partPutsCachedDataOnHugePagesAndHardlyAnythingElse() {
    Probe probe = cache(conf(Policy.PART, ""));
    if (unwanted(probe)) {
      return;
    }
    assertEquals("part", probe.usage().policy());
    assertTrue(probe.chunkHugeBytes() > probe.chunkBytes() / 2, probe::toString);
    assertTrue(probe.youngHugeBytes() < probe.hugeBytes() / 2, probe::toString);
    assertTrue(probe.usage().cachedHugeBytes() >= probe.chunkHugeBytes() / 2, probe::toString);
  }

  @Test
  void entirePutsYoungObjectsThereToo() {
    Probe probe = cache(conf(Policy.ENTIRE, "-XX:G1HeapRegionSize=4m"));
    if (probe.thp().equals("never") || probe.thp().isEmpty()) {
      System.out.println("skipped: there are no transparent huge pages");
      return;
    }
    assertEquals("entire", probe.usage().policy());
    assertTrue(probe.chunkHugeBytes() > probe.chunkBytes() / 2, probe::toString);
    assertTrue(probe.youngHugeBytes() > 0, probe::toString);
  }

  @Test
  void anotherCollectorIsRefusedAndTheJobRuns() {
    Probe probe = cache(conf(Policy.PART, "-XX:+UseParallelGC"));
    assertEquals("off", probe.usage().policy());
    if (probe.thp().equals("madvise")) {
      assertEquals(0, probe.hugeBytes(), probe::toString);
    }
  }
}
