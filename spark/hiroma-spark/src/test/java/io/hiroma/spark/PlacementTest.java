package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;

class PlacementTest {
  private static final long MIB = 1L << 20;
  private static final Runs SMALL = new Runs();

  private static CachedPages cached(long... startsAndEnds) {
    CachedPages pages = new CachedPages();
    for (int at = 0; at < startsAndEnds.length; at += 2) {
      pages.add(startsAndEnds[at] * MIB, startsAndEnds[at + 1] * MIB);
    }
    return pages;
  }

  private static List<Long> pages(long... mibs) {
    return LongStream.of(mibs).mapToObj(mib -> mib * MIB).toList();
  }

  @Test
  void whatIsCachedAsAWholeBecomesHugeAndHalvesOnlyAsFarAsLittleElseComesAlong() {
    Placement placement = new Placement();
    // 24 MiB in whole pages, and three pages of which half is cached: 2.7 more MiB may come along.
    CachedPages cached = cached(2, 26, 30, 31, 34, 35, 38, 39);
    List<Long> chosen = placement.decide(cached, true, SMALL, page -> true).collapse();
    assertEquals(pages(2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 30, 34), chosen);
    chosen.forEach(placement::collapsed);
    // They still count when they are huge.
    Runs huge = Runs.of(2 * MIB, 26 * MIB, 30 * MIB, 32 * MIB, 34 * MIB, 36 * MIB);
    assertEquals(List.of(), placement.decide(cached, true, huge, page -> true).collapse());
  }

  @Test
  void halfPagesAloneStaySmall() {
    assertEquals(List.of(), new Placement().decide(cached(0, 1, 2, 3, 4, 5), true, SMALL, page -> true).collapse());
  }

  @Test
  void whatTheCollectorWillMoveIsLeftAlone() {
    assertEquals(pages(4), new Placement().decide(cached(2, 6), true, SMALL, page -> page >= 4 * MIB).collapse());
  }

  @Test
  void whatIsGoneInTwoLooksBecomesSmall() {
    Placement placement = new Placement();
    placement.decide(cached(2, 6), true, SMALL, page -> true).collapse().forEach(placement::collapsed);
    assertEquals(pages(2, 4), placement.made());
    Runs huge = Runs.of(2 * MIB, 6 * MIB);
    // A look that did not see everything proves nothing.
    assertEquals(new Placement.Decision(List.of(), List.of(), false), placement.decide(cached(4, 6), false, huge, page -> true));
    Placement.Decision first = placement.decide(cached(4, 6), true, huge, page -> true);
    assertTrue(first.split().isEmpty() && first.pending());
    Placement.Decision second = placement.decide(cached(4, 6), true, huge, page -> true);
    assertEquals(pages(2), second.split());
    assertFalse(second.pending());
    second.split().forEach(placement::split);
    assertEquals(pages(4), placement.made());
  }

  /** So much is cached that each round takes two looks, of which only the second one sees everything. */
  @Test
  void whatIsGoneBecomesSmallAlsoIfARoundTakesSeveralLooks() {
    Placement placement = new Placement();
    LongStream.of(2, 4, 6).forEach(mib -> placement.collapsed(mib * MIB));
    Runs huge = Runs.of(2 * MIB, 8 * MIB);
    assertEquals(List.of(), placement.decide(cached(4, 5), false, huge, page -> true).split());
    Placement.Decision first = placement.decide(cached(4, 6), true, huge, page -> true);
    assertTrue(first.split().isEmpty() && first.pending());
    // What comes back is no longer doubtful, whenever in a round it is seen.
    assertEquals(List.of(), placement.decide(cached(6, 7), false, huge, page -> true).split());
    Placement.Decision second = placement.decide(cached(4, 6), true, huge, page -> true);
    assertEquals(pages(2), second.split());
    second.split().forEach(placement::split);
    assertEquals(List.of(), placement.decide(cached(4, 6), false, huge, page -> true).split());
    Placement.Decision third = placement.decide(cached(4, 6), true, huge, page -> true);
    assertEquals(pages(6), third.split());
    third.split().forEach(placement::split);
    assertEquals(pages(4), placement.made());
  }

  @Test
  void dataThatComesBackInTimeStaysHuge() {
    Placement placement = new Placement();
    placement.collapsed(2 * MIB);
    assertTrue(placement.decide(cached(), true, SMALL, page -> true).pending());
    assertEquals(List.of(), placement.decide(cached(2, 4), true, Runs.of(2 * MIB, 4 * MIB), page -> true).split());
    assertTrue(placement.decide(cached(), true, SMALL, page -> true).split().isEmpty());
  }

  @Test
  void regionsThatYoungObjectsGetBecomeSmallWhateverWasSeen() {
    Placement placement = new Placement();
    placement.collapsed(2 * MIB);
    placement.decide(cached(2, 4), false, SMALL, page -> false);
    assertEquals(pages(2), placement.decide(cached(2, 4), false, SMALL, page -> false).split());
  }
}
