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
  /**
   * What there is.
   *
   * @param g1 whether the collector is G1
   * @param heapMin bytes the heap has at least
   * @param heapMax bytes the heap can have
   * @param preTouch whether the JVM has touched the heap already
   * @param jvmHuge whether the JVM asks for huge pages itself
   * @param thp the kernel's word for transparent huge pages; "" if there is none
   * @param regionBytes bytes of a region of G1
   * @param unrollBytes bytes of a chunk of serialised data
   * @param nativeProblem why the native part cannot be used; "" if it can
   */
  record Facts(boolean g1, long heapMin, long heapMax, boolean preTouch, boolean jvmHuge, String thp, long regionBytes, long unrollBytes,
      String nativeProblem) {}

  static SelfCheck of(Policy policy, Facts facts) {
    List<String> refusals = new ArrayList<>();
    List<String> warnings = new ArrayList<>();
    if (policy == Policy.OFF) {
      return new SelfCheck(refusals, warnings);
    }
    switch (facts.thp()) {
      case "madvise" -> { }
      case "always" -> warnings.add("transparent huge pages are \"always\": the rest of the heap is told to use small ones, but memory "
          + "outside it is not; wanted: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
      case "" -> refusals.add("this kernel has no transparent huge pages");
      default -> refusals.add("transparent huge pages are \"" + facts.thp()
          + "\"; wanted: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    }
    if (policy != Policy.ENTIRE) {
      checkPart(policy, facts, refusals, warnings);
    } else if (!facts.jvmHuge()) {
      refusals.add("the JVM runs without -XX:+UseTransparentHugePages");
    }
    return new SelfCheck(List.copyOf(refusals), List.copyOf(warnings));
  }

  private static void checkPart(Policy policy, Facts facts, List<String> refusals, List<String> warnings) {
    if (!facts.g1()) {
      refusals.add("the collector is not G1; wanted: -XX:+UseG1GC");
      return;
    }
    if (!facts.nativeProblem().isEmpty()) {
      refusals.add(facts.nativeProblem());
    }
    if (facts.jvmHuge()) {
      refusals.add("the JVM puts everything on huge pages; wanted: no -XX:+UseTransparentHugePages or -XX:+UseLargePages");
    }
    if (policy == Policy.PART) {
      if (facts.heapMin() != facts.heapMax()) {
        refusals.add("the heap can grow, and what grows forgets the advice; wanted: -Xms" + facts.heapMax() / 1024 + "k");
      }
      if (facts.preTouch()) {
        refusals.add("the heap was touched before it could be advised on; wanted: no -XX:+AlwaysPreTouch");
      }
    }
    if (!Completion.humongous(facts.unrollBytes(), facts.regionBytes())) {
      warnings.add("serialised data comes in chunks of " + facts.unrollBytes() + " bytes, which G1 with regions of " + facts.regionBytes()
          + " moves around before they stay; wanted: " + Completion.UNROLL + "=" + Completion.CHUNK_BYTES
          + " and -XX:G1HeapRegionSize=4m");
    } else if (wasted(facts) > facts.unrollBytes() / 8) {
      warnings.add("each chunk of " + facts.unrollBytes() + " bytes of serialised data leaves " + wasted(facts)
          + " bytes of its regions unused; wanted: " + Completion.UNROLL + "=" + Completion.CHUNK_BYTES + " and -XX:G1HeapRegionSize=4m");
    }
  }

  /** Bytes between the end of a chunk and the end of its last region. */
  private static long wasted(Facts facts) {
    return Math.floorMod(-(facts.unrollBytes() + 16), facts.regionBytes());
  }
}
