package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class PromotionTest {
  private static final long MIB = 1L << 20;

  @Test
  void eachNewBlockIsWorthOneLook() {
    Promotion promotion = new Promotion();
    assertFalse(promotion.due(0, 0));
    assertTrue(promotion.due(2, 0));
    assertTrue(promotion.worthwhile(100 * MIB, 200 * MIB));
    assertFalse(promotion.due(2, 0));
    // A block that goes is no reason, one that takes its place is.
    assertFalse(promotion.due(1, 0));
    assertTrue(promotion.due(2, 0));
  }

  @Test
  void littleIsLeftToTheNextCollection() {
    Promotion promotion = new Promotion();
    assertFalse(promotion.worthwhile(8 * MIB - 1, 8 * MIB));
    assertTrue(promotion.worthwhile(8 * MIB, 400 * MIB));
    assertFalse(promotion.worthwhile(20 * MIB, 1_001 * MIB));
  }
}
