package io.hiroma.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a configuration of Spark lacks for a policy.
 *
 * @param additions what the driver can add by itself
 * @param missing sentences about what only the user can change, with the line that is wanted
 */
record Completion(Map<String, String> additions, List<String> missing) {
  static final String EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions";
  static final String DRIVER_OPTIONS = "spark.driver.extraJavaOptions";
  static final String UNROLL = "spark.storage.unrollMemoryThreshold";
  static final long REGION_BYTES = 4L << 20;
  /**
   * An array of so many bytes and its header of 16 take one region of 4 MiB, and outside the heap a piece of so many bytes with what malloc
   * adds (two words in front of it, one behind) is a mapping of 4 MiB. With 16 bytes more the mapping would have another page, and the kernel
   * would not put it at a multiple of 2 MiB.
   */
  static final long CHUNK_BYTES = REGION_BYTES - 32;
  static final String OFF_HEAP = "spark.memory.offHeap.enabled";
  static final String ENVIRONMENT = "spark.executorEnv.";
  static final String TUNABLES = "GLIBC_TUNABLES";
  /** Pieces of 1 MiB and more are mappings of their own, born huge, and go back to the system at once (glibc's manual, "Tunables"). */
  static final String TUNABLES_VALUE = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576";
  /** For cached objects: old after two collections, and a collection that is asked for is a young one. */
  private static final Map<String, String> PROMOTING =
      Map.of("MaxTenuringThreshold", "-XX:MaxTenuringThreshold=1", "ExplicitGC", "-XX:+ExplicitGCInvokesConcurrent");
  private static final long SPARK_UNROLL_BYTES = 1L << 20;

  /**
   * Looks at {@code conf}.
   *
   * @param local whether executors run inside the driver, whose JVM is up already
   * @param executorMemory bytes of an executor's heap, as Spark will ask for them
   */
  static Completion of(Policy policy, Map<String, String> conf, boolean local, long executorMemory) {
    Map<String, String> additions = new LinkedHashMap<>();
    List<String> missing = new ArrayList<>();
    List<String> wanted = new ArrayList<>();
    String key = local ? DRIVER_OPTIONS : EXECUTOR_OPTIONS;
    List<String> options = Arrays.asList(conf.getOrDefault(key, "").trim().split("\\s+"));
    if (policy == Policy.ENTIRE) {
      want(options, wanted, "-XX:+UseTransparentHugePages", "UseTransparentHugePages", key, missing);
    }
    if (policy == Policy.PART || policy == Policy.PART_OLD) {
      // On small machines the JVM takes another one by itself. One that the user has chosen is the executor's to refuse.
      if (options.stream().noneMatch(option -> option.matches("-XX:\\+Use\\w+GC"))) {
        wanted.add("-XX:+UseG1GC");
      }
      want(options, wanted, "-XX:G1HeapRegionSize=4m", "G1HeapRegionSize", key, missing);
      if (!conf.containsKey(UNROLL)) {
        additions.put(UNROLL, Long.toString(CHUNK_BYTES));
      }
    }
    if (policy == Policy.PART && options.stream().noneMatch(option -> option.startsWith("-Xms") || option.startsWith("-XX:InitialHeapSize="))) {
      wanted.add("-Xms" + executorMemory / 1024 + "k");
    }
    boolean another = options.stream().anyMatch(option -> option.matches("-XX:\\+Use\\w+GC") && !option.equals("-XX:+UseG1GC"));
    if (policy == Policy.PART && !another && Settings.of(conf).promote()) {
      // What the user has set otherwise is no mistake: such data is moved later.
      new TreeMap<>(PROMOTING).forEach((name, option) -> {
        if (options.stream().noneMatch(given -> given.contains(name))) {
          wanted.add(option);
        }
      });
    }
    if (policy == Policy.PART && conf.getOrDefault(OFF_HEAP, "false").equalsIgnoreCase("true")) {
      offHeap(conf.get(ENVIRONMENT + TUNABLES), local, additions, missing);
    }
    if (!wanted.isEmpty() && local) {
      missing.add("the driver's JVM is up already; start it with --driver-java-options \"" + String.join(" ", wanted) + "\"");
    } else if (!wanted.isEmpty()) {
      wanted.add(0, conf.getOrDefault(key, ""));
      additions.put(key, String.join(" ", wanted).trim());
    }
    return new Completion(additions, missing);
  }

  /** For the blocks off the heap, which come from malloc. */
  private static void offHeap(String given, boolean local, Map<String, String> additions, List<String> missing) {
    if (local) {
      missing.add("blocks off the heap are born huge if the driver's environment has " + TUNABLES + "=" + TUNABLES_VALUE);
    } else if (given == null) {
      additions.put(ENVIRONMENT + TUNABLES, TUNABLES_VALUE);
    } else if (!given.contains("glibc.malloc.hugetlb=1") || !given.contains("glibc.malloc.mmap_threshold=")) {
      missing.add(ENVIRONMENT + TUNABLES + " is set otherwise; blocks off the heap are born huge with " + TUNABLES_VALUE);
    }
  }

  /** Adds {@code option} to what is wanted, or, if the user has set it otherwise, says what that means. */
  private static void want(List<String> options, List<String> wanted, String option, String name, String key, List<String> missing) {
    if (options.contains(option)) {
      return;
    }
    if (options.stream().anyMatch(given -> given.startsWith("-XX") && given.contains(name))) {
      missing.add(key + " sets " + name + " otherwise; this policy wants " + option);
    } else {
      wanted.add(option);
    }
  }

  /** Whether chunks of {@code unroll} bytes become humongous objects in regions of {@code region} bytes. */
  static boolean humongous(long unroll, long region) {
    return unroll + 16 > region / 2;
  }

  static long unrollBytes(Map<String, String> conf) {
    try {
      return Long.parseLong(conf.getOrDefault(UNROLL, Long.toString(SPARK_UNROLL_BYTES)).trim());
    } catch (NumberFormatException notANumber) {
      return SPARK_UNROLL_BYTES;
    }
  }
}
