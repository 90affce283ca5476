package io.hiroma.spark;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/** What this JVM and this kernel are set to. */
final class Jvm {
  private static final Path THP = Path.of("/sys/kernel/mm/transparent_hugepage/enabled");

  private Jvm() {}

  static SelfCheck.Facts facts(long unrollBytes) {
    return new SelfCheck.Facts(is("UseG1GC"), bytes("InitialHeapSize"), bytes("MaxHeapSize"), is("AlwaysPreTouch"),
        is("UseTransparentHugePages") || is("UseLargePages"), thp(), bytes("G1HeapRegionSize"), unrollBytes, Native.problem());
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

  /** The word in brackets: always, madvise or never; "" without transparent huge pages. */
  private static String thp() {
    try {
      String words = Files.readString(THP);
      return words.substring(words.indexOf('[') + 1, words.indexOf(']'));
    } catch (IOException | IndexOutOfBoundsException notThere) {
      return "";
    }
  }
}
