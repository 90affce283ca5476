package io.hiroma.spark;

import static io.hiroma.spark.Cluster.PARTITIONS;
import static io.hiroma.spark.Cluster.PARTITION_BYTES;
import static io.hiroma.spark.Cluster.await;
import static io.hiroma.spark.Cluster.check;
import static io.hiroma.spark.Cluster.look;
import static io.hiroma.spark.Cluster.onRequest;
import static io.hiroma.spark.Cluster.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Executors in which the policy cannot work, has little room, or does not last: whole jobs, which end with the right result. */
@Timeout(600)
class OddExecutorsIT {
  /** Becomes its arguments in a process that is denied huge pages ({@code PR_SET_THP_DISABLE}, prctl(2)). */
  private static final String DENIED =
      "exec python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])' ";

  @TempDir
  Path directory;

  /** What the executor of each number gets besides what all get, and what the driver's log says of it. */
  private record Odd(String script, String said) {}

  private static List<Odd> odd() {
    List<Odd> found = new ArrayList<>();
    for (String collector : List.of("UseG1GC", "UseSerialGC", "UseParallelGC")) {
      found.add(new Odd("exec " + Cluster.realJava() + " -XX:+" + collector + " -XX:+UseTransparentHugePages \"$@\"",
          "the JVM puts everything on huge pages"));
    }
    if (Files.isExecutable(Path.of("/usr/bin/python3"))) {
      found.add(new Odd(DENIED + Cluster.realJava() + " \"$@\"", "transparent huge pages are \"never\""));
    } else {
      System.out.println("skipped: there is no python3 to deny a process huge pages with");
    }
    return found;
  }

  @Test
  void executorsThatCannotSayWhyAndTheJobRuns() throws IOException {
    List<Odd> odd = odd();
    // One that is started again has another number.
    StringBuilder script = new StringBuilder("number=$(echo \"$*\" | sed 's/.*--executor-id \\([0-9]*\\).*/\\1/')\ncase $((number % "
        + odd.size() + ")) in\n");
    for (int kind = 0; kind < odd.size(); kind++) {
      script.append(kind).append(") ").append(odd.get(kind).script()).append(" ;;\n");
    }
    // The driver leaves the options alone, so that each executor has those of the script only.
    SparkConf conf = Cluster.conf(Policy.PART, odd.size(), 640).set("spark.hiroma.configure", "false")
        .set("spark.executorEnv.JAVA_HOME", Cluster.javaHome(directory, script.append("esac").toString()).toString());
    try (Complaints complaints = Complaints.listen(); JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> cached = Probe.numbers(context, 8, 8 << 20).persist(StorageLevel.MEMORY_ONLY_SER());
      for (int kind = 0; kind < odd.size(); kind++) {
        int number = kind;
        String said = " has the pages that it would have without the plugin: " + odd.get(kind).said();
        until(() -> complaints.said("executor (\\d+)" + Pattern.quote(said) + ".*", executor -> executor % odd.size() == number),
            () -> "not said of executor " + number + said + "\nsaid:\n" + complaints);
      }
      check(cached, 8, 8 << 20);
      Probe probe = look(context, "odd");
      assertEquals("off", probe.usage().policy());
    }
  }

  @Test
  void executorsThatComeAndGoWithTheLoadCacheAnew() throws IOException {
    SparkConf conf = Cluster.conf(Policy.PART, 1, 512).set("spark.dynamicAllocation.enabled", "true")
        .set("spark.dynamicAllocation.shuffleTracking.enabled", "true").set("spark.dynamicAllocation.minExecutors", "0")
        .set("spark.dynamicAllocation.maxExecutors", "1").set("spark.dynamicAllocation.executorIdleTimeout", "2s")
        .set("spark.dynamicAllocation.cachedExecutorIdleTimeout", "2s");
    try (JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> cached = Probe.numbers(context, PARTITIONS, PARTITION_BYTES / 2).persist(StorageLevel.MEMORY_ONLY_SER());
      check(cached, PARTITIONS, PARTITION_BYTES / 2);
      String first = look(context, "first").executor();
      until(() -> context.sc().getExecutorIds().isEmpty(), () -> "the executor stays although it is idle");
      // What was cached is gone with it; a slow machine may lose the next one as well before it is looked at.
      Probe[] last = new Probe[1];
      until(() -> {
        check(cached, PARTITIONS, PARTITION_BYTES / 2);
        last[0] = look(context, "next");
        return !last[0].executor().equals(first) && last[0].chunkBytes() >= PARTITION_BYTES
            && (!onRequest(last[0]) || last[0].chunkHugeBytes() > last[0].chunkBytes() / 2);
      }, () -> String.valueOf(last[0]));
    }
  }

  @Test
  void moreThanFitsIsEvictedInAContainerAndTheResultIsRight() throws IOException {
    MemoryLimit limit = MemoryLimit.of(1000L << 20);
    String before = limit == null ? "" : limit.script();
    SparkConf conf = Cluster.conf(Policy.PART, 1, 512)
        .set("spark.executorEnv.JAVA_HOME", Cluster.javaHome(directory, before).toString());
    int partitions = 10;
    try (MemoryLimit ending = limit; JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> cached = Probe.numbers(context, partitions, PARTITION_BYTES).persist(StorageLevel.MEMORY_ONLY_SER());
      for (int round = 0; round < 2; round++) {
        check(cached, partitions, PARTITION_BYTES);
      }
      Probe probe = look(context, "eviction");
      assertTrue(probe.chunkBytes() < partitions * (long) PARTITION_BYTES, probe::toString);
      assertTrue(probe.chunkBytes() > 0, probe::toString);
      if (onRequest(probe)) {
        // Where a container has little memory the JVM takes the Serial collector by itself.
        assertEquals("part", probe.usage().policy());
        await(context, "eviction", seen -> seen.chunkHugeBytes() > seen.chunkBytes() / 2);
      }
      assertTrue(ending == null || ending.holds(probe.pid()), "the executor is not in the container");
    }
  }
}
