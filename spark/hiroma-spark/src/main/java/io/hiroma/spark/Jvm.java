package io.hiroma.spark;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.io.IOException;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/** What this JVM and this kernel are set to. */
final class Jvm {
  /** The collectors whose heaps are known, and all others. */
  enum Collector {
    G1, SERIAL, PARALLEL, OTHER;
  }

  private static final Path THP = Path.of("/sys/kernel/mm/transparent_hugepage/enabled");

  private static final Path HUGE_BYTES = Path.of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");

  private Jvm() {}

  static SelfCheck.Facts facts() {
    return new SelfCheck.Facts(collector(), is("UseTransparentHugePages") || is("UseLargePages"), thp(), problem());
  }

  static Collector collector() {
    if (is("UseG1GC")) {
      return Collector.G1;
    }
    if (is("UseSerialGC")) {
      return Collector.SERIAL;
    }
    return is("UseParallelGC") ? Collector.PARALLEL : Collector.OTHER;
  }

  /** Collections of all kinds so far: objects move only in one. */
  static long collections() {
    return ManagementFactory.getGarbageCollectorMXBeans().stream().mapToLong(GarbageCollectorMXBean::getCollectionCount).sum();
  }

  /** Why pages cannot be looked after here; "" if they can. Processors with larger pages have larger huge pages as well. */
  private static String problem() {
    try {
      String bytes = Files.readString(HUGE_BYTES).trim();
      if (!bytes.equals(Long.toString(CachedPages.HUGE_PAGE))) {
        return "huge pages have " + bytes + " bytes on this machine; the plugin knows those of 2 MiB (kernels with pages of 4 KiB)";
      }
    } catch (IOException notTold) {
      // Then there are none, which is told by another check.
    }
    String missing = Native.problem();
    return missing.isEmpty() ? Native.pagesProblem() : missing;
  }

  private static boolean is(String flag) {
    return "true".equals(value(flag));
  }

  /** A flag's value; "" in a JVM that does not have it. */
  private static String value(String flag) {
    HotSpotDiagnosticMXBean bean = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
    if (bean == null) {
      return "";
    }
    try {
      return bean.getVMOption(flag).getValue();
    } catch (IllegalArgumentException notThere) {
      return "";
    }
  }

  /** The word in brackets: always, madvise or never; "" without transparent huge pages. A process can be denied them as well. */
  private static String thp() {
    try {
      if (Files.readAllLines(Path.of("/proc/self/status")).stream().anyMatch(line -> line.matches("THP_enabled:\\s*0"))) {
        return "never";
      }
      String words = Files.readString(THP);
      return words.substring(words.indexOf('[') + 1, words.indexOf(']'));
    } catch (IOException | IndexOutOfBoundsException notThere) {
      return "";
    }
  }
}
