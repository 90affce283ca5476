package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PagesTest {
  private static final long MIB = 1L << 20;

  @Test
  void mappingsAreReadAsTheKernelWritesThem() {
    List<Smaps.Mapping> found = Smaps.parse(List.of(
        "c0000000-e0000000 rw-p 00000000 00:00 0 ", "Size:             524288 kB", "Rss:               10240 kB",
        "AnonHugePages:      8192 kB", "VmFlags: rd wr mr mw me ac sd hg ",
        "e0000000-100000000 rw-p 00000000 00:00 0 ", "Rss:                   4 kB", "AnonHugePages:         0 kB", "VmFlags: rd wr mr mw me ac sd ",
        "7f0000000000-7f0000001000 r--p 00000000 08:01 12 /usr/lib/a file: with - signs", "Rss: 4 kB", "AnonHugePages: 0 kB", "VmFlags: rd mr"));
    assertEquals(3, found.size());
    assertEquals(new Smaps.Mapping(0xc0000000L, 0xe0000000L, 10 * MIB, 8 * MIB,
        Set.of("VmFlags:", "rd", "wr", "mr", "mw", "me", "ac", "sd", "hg")), found.get(0));
    assertTrue(Smaps.covered(found, 0xc0000000L, 0x100000000L, "rd"));
    assertTrue(Smaps.covered(found, 0xc0000000L, 0xe0000000L, "hg"));
    assertFalse(Smaps.covered(found, 0xc0000000L, 0xe0001000L, "hg"));
    assertFalse(Smaps.covered(found, 0xbffff000L, 0xe0000000L, "rd"));
  }

  @Test
  void runsAreCutToTheRangeThatIsAskedFor() {
    Runs runs = Runs.of(10, 20, 30, 40);
    assertEquals(0, runs.within(0, 10));
    assertEquals(5, runs.within(15, 30));
    assertEquals(12, runs.within(18, 50));
    assertEquals(2, runs.within(12, 14));
    assertEquals(0, runs.within(20, 30));
    assertEquals(0, Runs.of().within(0, 100));
  }

  @Test
  void theSweepTakesWhatStaysHumongousFirstAndNothingYoung() {
    List<Region> regions = List.of(new Region(0, 3 * MIB, Region.Kind.OLD), new Region(4 * MIB, 8 * MIB, Region.Kind.YOUNG),
        new Region(8 * MIB, 12 * MIB, Region.Kind.HUMONGOUS), new Region(12 * MIB, 12 * MIB, Region.Kind.FREE));
    Runs huge = Runs.of(10 * MIB, 12 * MIB);
    assertEquals(List.of(8 * MIB, 0L), SweepPlan.choose(regions, huge, 7 * MIB, 10));
    assertEquals(List.of(8 * MIB), SweepPlan.choose(regions, huge, 7 * MIB, 1));
    assertEquals(2 * MIB, SweepPlan.staying(regions, huge));
  }

  @Test
  void theSweepLeavesTheOldGenerationAloneThatNoCacheNeeds() {
    List<Region> regions = List.of(new Region(0, 512 * MIB, Region.Kind.OLD));
    assertEquals(List.of(), SweepPlan.choose(regions, Runs.of(), 0, 1_000));
    assertEquals((80 + 10 + 64) / 2, SweepPlan.choose(regions, Runs.of(), 80 * MIB, 1_000).size());
    assertEquals(List.of(), SweepPlan.choose(regions, Runs.of(0, 160 * MIB), 80 * MIB, 1_000));
  }
}
