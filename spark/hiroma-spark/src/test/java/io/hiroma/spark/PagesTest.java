package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

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
  }

  @Test
  void theMemoryOfThisProcessIsAboutWhatItsMappingsHave() throws java.io.IOException {
    double about = Smaps.residentBytes();
    long exact = Smaps.sum().resident();
    assertEquals(1, about / exact, 0.3);
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
  void aPageIsWorthwhileIfHalfOfItIsCachedAndSomeOfItIsSmall() {
    CachedPages pages = new CachedPages();
    pages.add(3 * MIB, 9 * MIB);
    pages.addAround(11 * MIB, MIB);
    pages.addAround(13 * MIB, MIB / 2);
    pages.addAround(13 * MIB + 1, MIB / 4);
    assertEquals(List.of(2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 10 * MIB, 12 * MIB), pages.worthwhile(Runs.of()));
    assertEquals(List.of(2 * MIB, 8 * MIB, 12 * MIB), pages.worthwhile(Runs.of(4 * MIB, 8 * MIB, 10 * MIB, 12 * MIB)));
    assertArrayEquals(new long[] {7 * MIB + MIB * 3 / 4, 5 * MIB}, pages.total(Runs.of(4 * MIB, 8 * MIB, 10 * MIB, 12 * MIB)));
  }

  @Test
  void nothingCachedIsNothingToDo() {
    CachedPages pages = new CachedPages();
    assertEquals(List.of(), pages.worthwhile(Runs.of(0, MIB)));
    assertArrayEquals(new long[] {0, 0}, pages.total(Runs.of()));
  }
}
