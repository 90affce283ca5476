package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class SelfCheckTest {
  private static final long GIB = 1L << 30;
  private static final SelfCheck.Facts GOOD = new SelfCheck.Facts(true, GIB, GIB, false, false, "madvise", 4 << 20, 4194272, "");

  private static String refusal(Policy policy, SelfCheck.Facts facts) {
    List<String> refusals = SelfCheck.of(policy, facts).refusals();
    assertEquals(1, refusals.size(), refusals::toString);
    return refusals.get(0);
  }

  @Test
  void whatIsAsExpectedIsNeitherRefusedNorWarnedOf() {
    assertEquals(new SelfCheck(List.of(), List.of()), SelfCheck.of(Policy.PART, GOOD));
  }

  @Test
  void eachThingThatIsMissingIsNamed() {
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(false, GIB, GIB, false, false, "madvise", 0, 4194272, "")).contains("-XX:+UseG1GC"));
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(true, GIB / 4, GIB, false, false, "madvise", 4 << 20, 4194272, ""))
        .contains("-Xms1048576k"));
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, true, false, "madvise", 4 << 20, 4194272, ""))
        .contains("AlwaysPreTouch"));
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, true, "madvise", 4 << 20, 4194272, ""))
        .contains("UseTransparentHugePages"));
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, false, "never", 4 << 20, 4194272, "")).contains("\"never\""));
    assertTrue(refusal(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, false, "", 4 << 20, 4194272, "")).contains("this kernel"));
    assertEquals("no library", refusal(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, false, "madvise", 4 << 20, 4194272, "no library")));
    assertTrue(refusal(Policy.ENTIRE, GOOD).contains("-XX:+UseTransparentHugePages"));
  }

  @Test
  void offAsksForNothing() {
    assertEquals(new SelfCheck(List.of(), List.of()),
        SelfCheck.of(Policy.OFF, new SelfCheck.Facts(false, 1, 2, true, true, "never", 0, 0, "no library")));
  }

  @Test
  void partOldTakesAHeapThatGrows() {
    assertTrue(SelfCheck.of(Policy.PART_OLD, new SelfCheck.Facts(true, 1, GIB, true, false, "madvise", 4 << 20, 4194272, "")).refusals()
        .isEmpty());
  }

  @Test
  void chunksThatDoNotFitRegionsAreWarnedOf() {
    for (long chunk : new long[] {1 << 20, 4 << 20}) {
      SelfCheck check = SelfCheck.of(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, false, "madvise", 4 << 20, chunk, ""));
      assertTrue(check.refusals().isEmpty());
      assertTrue(check.warnings().get(0).contains("spark.storage.unrollMemoryThreshold=4194272"), check.warnings()::toString);
    }
    assertTrue(SelfCheck.of(Policy.PART, new SelfCheck.Facts(true, GIB, GIB, false, false, "always", 4 << 20, 4194272, "")).warnings().get(0)
        .contains("\"always\""));
  }
}
