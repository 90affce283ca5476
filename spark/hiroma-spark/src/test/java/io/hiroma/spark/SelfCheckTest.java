package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class SelfCheckTest {
  private static final SelfCheck NOTHING = new SelfCheck(List.of(), List.of());

  private static SelfCheck.Facts facts(Jvm.Collector collector, boolean jvmHuge, String thp, String problem) {
    return new SelfCheck.Facts(collector, jvmHuge, thp, problem);
  }

  private static String refusal(Policy policy, SelfCheck.Facts facts) {
    List<String> refusals = SelfCheck.of(policy, facts).refusals();
    assertEquals(1, refusals.size(), refusals::toString);
    return refusals.get(0);
  }

  @Test
  void eachCollectorWhoseHeapIsKnownIsGood() {
    for (Jvm.Collector collector : List.of(Jvm.Collector.G1, Jvm.Collector.SERIAL, Jvm.Collector.PARALLEL)) {
      assertEquals(NOTHING, SelfCheck.of(Policy.PART, facts(collector, false, "madvise", "")));
    }
  }

  @Test
  void eachThingThatIsMissingIsNamed() {
    Jvm.Collector g1 = Jvm.Collector.G1;
    assertTrue(refusal(Policy.PART, facts(g1, true, "madvise", "")).contains("UseTransparentHugePages"));
    assertTrue(refusal(Policy.PART, facts(g1, false, "never", "")).contains("\"never\""));
    assertTrue(refusal(Policy.PART, facts(g1, false, "", "")).contains("this kernel"));
    assertEquals("no library", refusal(Policy.PART, facts(g1, false, "madvise", "no library")));
    assertTrue(refusal(Policy.ENTIRE, facts(g1, false, "madvise", "")).contains("-XX:+UseTransparentHugePages"));
  }

  @Test
  void whatWorksOnlyInPartIsWarnedOf() {
    SelfCheck other = SelfCheck.of(Policy.PART, facts(Jvm.Collector.OTHER, false, "madvise", ""));
    assertTrue(other.refusals().isEmpty());
    assertTrue(other.warnings().get(0).contains("only blocks off the heap"), other::toString);
    SelfCheck always = SelfCheck.of(Policy.PART, facts(Jvm.Collector.G1, false, "always", ""));
    assertTrue(always.refusals().isEmpty());
    assertTrue(always.warnings().get(0).contains("\"always\""), always::toString);
  }

  @Test
  void offAsksForNothing() {
    assertEquals(NOTHING, SelfCheck.of(Policy.OFF, facts(Jvm.Collector.OTHER, true, "never", "no library")));
  }
}
