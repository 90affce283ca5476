package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class BudgetTest {
  private static final long MILLI = 1_000_000;

  @Test
  void aShareOfTheTimeIsSpentAndNotMoreThanWasSaved() {
    Budget budget = new Budget(10, 0);
    assertTrue(budget.allows(0));
    budget.spend(Budget.SAVED_NANOS_MAX + 50 * MILLI);
    assertFalse(budget.allows(100 * MILLI));
    assertTrue(budget.allows(501 * MILLI));
    // An hour of rest is worth no more than the savings.
    assertTrue(budget.allows(3_600_000 * MILLI));
    budget.spend(Budget.SAVED_NANOS_MAX);
    assertFalse(budget.allows(3_600_000 * MILLI));
  }

  @Test
  void nothingIsSpentOfNothingButTheSavings() {
    Budget budget = new Budget(0, 0);
    budget.spend(Budget.SAVED_NANOS_MAX);
    assertFalse(budget.allows(Long.MAX_VALUE / 1_000));
  }

  @Test
  void chunksFillTheirRegions() {
    assertEquals((1 << 20) - 32, Chunks.fitting(1 << 20));
    assertEquals((2 << 20) - 32, Chunks.fitting(2 << 20));
    for (long other : new long[] {0, 4 << 20, 32 << 20}) {
      assertEquals(1 << 20, Chunks.fitting(other));
    }
  }
}
