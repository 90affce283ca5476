package io.hiroma.spark;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/** What this JVM and this kernel are set to. */
final class Jvm {
  private static final Path THP = Path.of("/sys/kernel/mm/transparent_hugepage/enabled");

  private static final Path HUGE_BYTES = Path.of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");

  private Jvm() {}

  static SelfCheck.Facts facts(long unrollBytes) {
    return new SelfCheck.Facts(is("UseG1GC"), bytes("InitialHeapSize"), bytes("MaxHeapSize"), is("AlwaysPreTouch"),
        is("UseTransparentHugePages") || is("UseLargePages"), thp(), bytes("G1HeapRegionSize"), unrollBytes, problem());
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
    return Native.problem();
  }

  /** Whether a collection that is asked for is a young one with a concurrent cycle, not a full one. */
  static boolean collectsConcurrently() {
    return is("ExplicitGCInvokesConcurrent") && !is("DisableExplicitGC");
  }

  static long heapMax() {
    return bytes("MaxHeapSize");
  }

  private static boolean is(String flag) {
    return "true".equals(value(flag));
  }

  private static long bytes(String flag) {
    String value = value(flag);
    return value.isEmpty() ? 0 : Long.parseLong(value);
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
