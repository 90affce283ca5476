package io.hiroma.spark;

import java.util.ArrayList;
import java.util.List;

/**
 * Whether a policy can work in this JVM on this machine.
 *
 * @param refusals why not; if there is one, nothing is done
 * @param warnings what will be worse than it could be, and the line that mends it
 */
record SelfCheck(List<String> refusals, List<String> warnings) {
  private static final String MADVISE = "wanted: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";

  /**
   * What there is.
   *
   * @param collector the JVM's collector
   * @param jvmHuge whether the JVM asks for huge pages itself
   * @param thp the kernel's word for transparent huge pages; "" if there is none
   * @param nativeProblem why the native part cannot be used; "" if it can
   */
  record Facts(Jvm.Collector collector, boolean jvmHuge, String thp, String nativeProblem) {}

  static SelfCheck of(Policy policy, Facts facts) {
    List<String> refusals = new ArrayList<>();
    List<String> warnings = new ArrayList<>();
    if (policy == Policy.OFF) {
      return new SelfCheck(refusals, warnings);
    }
    switch (facts.thp()) {
      case "madvise" -> { }
      case "always" -> {
        if (policy != Policy.ENTIRE) {
          warnings.add("transparent huge pages are \"always\", and so most of the JVM is on them anyway; " + MADVISE);
        }
      }
      case "" -> refusals.add("this kernel has no transparent huge pages");
      default -> refusals.add("transparent huge pages are \"" + facts.thp() + "\"; " + MADVISE);
    }
    if (policy == Policy.ENTIRE) {
      if (!facts.jvmHuge()) {
        refusals.add("the JVM runs without -XX:+UseTransparentHugePages");
      }
      return new SelfCheck(List.copyOf(refusals), List.copyOf(warnings));
    }
    if (!facts.nativeProblem().isEmpty()) {
      refusals.add(facts.nativeProblem());
    }
    if (facts.jvmHuge()) {
      refusals.add("the JVM puts everything on huge pages; wanted: no -XX:+UseTransparentHugePages or -XX:+UseLargePages");
    }
    if (facts.collector() == Jvm.Collector.OTHER) {
      warnings.add("the heap of this collector is not known, and only blocks off the heap get huge pages; wanted: -XX:+UseG1GC,"
          + " -XX:+UseParallelGC or -XX:+UseSerialGC");
    }
    return new SelfCheck(List.copyOf(refusals), List.copyOf(warnings));
  }

  /** The same, with what became known later of a heap that cannot be read. */
  SelfCheck and(Policy policy, List<String> hidden) {
    if (policy == Policy.OFF || policy == Policy.ENTIRE) {
      return this;
    }
    List<String> more = new ArrayList<>(warnings);
    hidden.forEach(why -> more.add("the heap cannot be read, and only blocks off the heap get huge pages: " + why));
    return new SelfCheck(refusals, List.copyOf(more));
  }
}
