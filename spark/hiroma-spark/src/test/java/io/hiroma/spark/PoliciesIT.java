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
import java.util.function.Consumer;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The other policies, each in an application of its own. */
@Timeout(600)
class PoliciesIT {
  private static void cached(Policy policy, String options, Consumer<JavaSparkContext> then) throws IOException {
    SparkConf conf = Cluster.conf(policy, 1, 512).set("spark.executor.extraJavaOptions", options);
    try (JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> numbers = Probe.numbers(context, PARTITIONS, PARTITION_BYTES / 2).persist(StorageLevel.MEMORY_ONLY_SER());
      check(numbers, PARTITIONS, PARTITION_BYTES / 2);
      then.accept(context);
      check(numbers, PARTITIONS, PARTITION_BYTES / 2);
    }
  }

  @Test
  void offPutsNothingOnHugePages() throws IOException {
    cached(Policy.OFF, "", context -> {
      Probe probe = look(context, "off");
      assertEquals("off", probe.usage().policy());
      if (onRequest(probe)) {
        assertEquals(0, probe.hugeBytes(), probe::toString);
      }
    });
  }

  @Test
  void entirePutsYoungObjectsThereToo() throws IOException {
    cached(Policy.ENTIRE, "-XX:+UseG1GC", context -> {
      Probe probe = look(context, "entire");
      if (probe.thp().equals("never") || probe.thp().isEmpty()) {
        System.out.println("skipped: there are no transparent huge pages");
        return;
      }
      assertEquals("entire", probe.usage().policy());
      assertTrue(probe.chunkHugeBytes() > probe.chunkBytes() / 2, probe::toString);
      assertTrue(probe.youngHugeBytes() > 0, probe::toString);
    });
  }

  @Test
  void partOldMarksWhatWasStored() throws IOException {
    cached(Policy.PART_OLD, "", context -> {
      if (onRequest(look(context, "part-old"))) {
        // When khugepaged comes by is the kernel's; that the pages wait for it is ours.
        Probe probe = await(context, "part-old", seen -> seen.advisedBytes() > PARTITION_BYTES / 2);
        assertEquals("part-old", probe.usage().policy());
      }
    });
  }

  /** The shortest turns: that there is a verdict, and that turns do what they are called. */
  @Test
  void autoMeasuresOnTheJobAndTells() throws IOException {
    SparkConf conf = Cluster.conf(Policy.AUTO, 1, 512).set("spark.hiroma.turn.millis", "2000");
    try (JavaSparkContext context = new JavaSparkContext(conf)) {
      JavaRDD<long[]> numbers = Probe.numbers(context, PARTITIONS, PARTITION_BYTES / 2).persist(StorageLevel.MEMORY_ONLY_SER());
      if (!onRequest(look(context, "auto"))) {
        return;
      }
      boolean[] seen = new boolean[2];
      Cluster.until(() -> {
        check(numbers, PARTITIONS, PARTITION_BYTES / 2);
        long huge = look(context, "auto").hugeBytes();
        seen[huge == 0 ? 0 : 1] = true;
        return seen[0] && seen[1] && HiromaDriver.told().matches("(kept|left).*: huge pages save -?[0-9.]+ % .*");
      }, HiromaDriver::told);
      boolean kept = HiromaDriver.told().startsWith("kept");
      await(context, "auto", probe -> probe.hugeBytes() > 0 == kept);
      check(numbers, PARTITIONS, PARTITION_BYTES / 2);
    }
  }
}
