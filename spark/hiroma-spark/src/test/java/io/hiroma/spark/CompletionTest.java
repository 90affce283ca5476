package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class CompletionTest {
  private static final long GIB = 1L << 30;

  @Test
  void partWantsAFixedHeapAndChunksThatFillRegions() {
    Completion completion = Completion.of(Policy.PART, Map.of("spark.executor.extraJavaOptions", "-Dx=y"), false, GIB);
    assertEquals(Map.of("spark.storage.unrollMemoryThreshold", "4194272",
        "spark.executor.extraJavaOptions", "-Dx=y -XX:+UseG1GC -XX:G1HeapRegionSize=4m -Xms1048576k "
            + "-XX:+ExplicitGCInvokesConcurrent -XX:MaxTenuringThreshold=1"), completion.additions());
    assertTrue(completion.missing().isEmpty());
  }

  @Test
  void whatTheUserHasSetStays() {
    Map<String, String> conf = Map.of("spark.executor.extraJavaOptions", "-XX:+UseParallelGC -Xms512m -XX:G1HeapRegionSize=8m",
        "spark.storage.unrollMemoryThreshold", "1048576");
    Completion completion = Completion.of(Policy.PART, conf, false, GIB);
    assertTrue(completion.additions().isEmpty());
    assertEquals(List.of("spark.executor.extraJavaOptions sets G1HeapRegionSize otherwise; this policy wants -XX:G1HeapRegionSize=4m"),
        completion.missing());
  }

  @Test
  void cachedObjectsBecomeOldAtOnceUnlessTheUserWantsOtherwise() {
    assertTrue(options("").endsWith(" -XX:+ExplicitGCInvokesConcurrent -XX:MaxTenuringThreshold=1"));
    assertTrue(options("-XX:+UseG1GC -XX:MaxTenuringThreshold=3").endsWith(" -XX:+ExplicitGCInvokesConcurrent"));
    assertTrue(options("-XX:+DisableExplicitGC").endsWith(" -XX:MaxTenuringThreshold=1"));
    String kept = Completion.of(Policy.PART, Map.of("spark.hiroma.promote", "false"), false, GIB).additions().get(Completion.EXECUTOR_OPTIONS);
    assertFalse(kept.contains("Tenuring") || kept.contains("ExplicitGC"), kept);
  }

  private static String options(String given) {
    return Completion.of(Policy.PART, Map.of(Completion.EXECUTOR_OPTIONS, given), false, GIB).additions().get(Completion.EXECUTOR_OPTIONS);
  }

  @Test
  void aJvmThatIsUpAlreadyIsTheUsers() {
    Completion completion = Completion.of(Policy.PART, Map.of(), true, GIB);
    assertEquals(Map.of("spark.storage.unrollMemoryThreshold", "4194272"), completion.additions());
    assertTrue(completion.missing().get(0).endsWith("--driver-java-options \"-XX:+UseG1GC -XX:G1HeapRegionSize=4m -Xms1048576k "
        + "-XX:+ExplicitGCInvokesConcurrent -XX:MaxTenuringThreshold=1\""));
  }

  @Test
  void entireIsTheJvmsOwnAndOffIsNothing() {
    assertEquals(Map.of("spark.executor.extraJavaOptions", "-XX:+UseTransparentHugePages"),
        Completion.of(Policy.ENTIRE, Map.of(), false, GIB).additions());
    assertTrue(Completion.of(Policy.OFF, Map.of(), false, GIB).additions().isEmpty());
  }

  @Test
  void blocksOffTheHeapAreMappingsThatAreBornHuge() {
    String key = "spark.executorEnv.GLIBC_TUNABLES";
    Map<String, String> enabled = Map.of("spark.memory.offHeap.enabled", "true");
    assertEquals("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576", Completion.of(Policy.PART, enabled, false, GIB).additions().get(key));
    Completion set = Completion.of(Policy.PART, Map.of("spark.memory.offHeap.enabled", "true", key, "glibc.malloc.hugetlb=0"), false, GIB);
    assertFalse(set.additions().containsKey(key));
    assertTrue(set.missing().get(0).startsWith(key + " is set otherwise"));
    assertTrue(Completion.of(Policy.PART, enabled, true, GIB).missing().get(0).contains("GLIBC_TUNABLES="));
    assertFalse(Completion.of(Policy.PART_OLD, enabled, false, GIB).additions().containsKey(key));
    assertFalse(Completion.of(Policy.PART, Map.of(), false, GIB).additions().containsKey(key));
    // What malloc adds, rounded up to whole pages, makes a mapping of whole huge pages.
    assertEquals(0, (Completion.CHUNK_BYTES + 16 + 8 + 4095) / 4096 * 4096 % (2 << 20));
  }

  @Test
  void aChunkIsHumongousFromHalfARegionOn() {
    assertTrue(Completion.humongous(4194272, 4 << 20));
    assertTrue(Completion.humongous((2 << 20) - 15, 4 << 20));
    assertFalse(Completion.humongous((2 << 20) - 16, 4 << 20));
  }
}
