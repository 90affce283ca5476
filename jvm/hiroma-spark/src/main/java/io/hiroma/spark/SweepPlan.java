package io.hiroma.spark;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** Which ranges of 2 MiB hold data that has come to stay and are not on a huge page. */
final class SweepPlan {
  static final long HUGE_PAGE = 2L << 20;
  /** What is old beside cached data: Spark's own objects. */
  private static final long BESIDE = 64L << 20;

  private SweepPlan() {}

  /** Bytes of humongous and old regions, as far as they are used, that are on huge pages. */
  static long staying(List<Region> regions, Runs huge) {
    return regions.stream().filter(region -> region.kind().stays()).mapToLong(region -> huge.within(region.bottom(), region.top())).sum();
  }

  /**
   * First addresses of at most {@code most} ranges. Humongous regions come first, since hardly anything but cached data is there. Once
   * as much is on huge pages as is cached, and a little more, nothing is left to choose: the rest of the old generation is not ours.
   */
  static List<Long> choose(List<Region> regions, Runs huge, long cachedBytes, int most) {
    List<Long> chosen = new ArrayList<>();
    long wanted = cachedBytes == 0 ? 0 : cachedBytes + cachedBytes / 8 + BESIDE - staying(regions, huge);
    List<Region> staying = regions.stream().filter(region -> region.kind().stays()).sorted(Comparator.comparing(Region::kind)).toList();
    for (Region region : staying) {
      long first = Math.floorDiv(region.bottom() + HUGE_PAGE - 1, HUGE_PAGE) * HUGE_PAGE;
      for (long at = first; at + HUGE_PAGE <= region.top(); at += HUGE_PAGE) {
        if (chosen.size() >= most || wanted < HUGE_PAGE) {
          return chosen;
        }
        if (huge.within(at, at + HUGE_PAGE) < HUGE_PAGE) {
          chosen.add(at);
          wanted -= HUGE_PAGE;
        }
      }
    }
    return chosen;
  }
}
