package io.hiroma.spark;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** How much of each range of 2 MiB is cached data: exactly for what was looked up as a whole, roughly for what a sample stands for. */
final class CachedPages {
  static final long HUGE_PAGE = 2L << 20;

  private final TreeMap<Long, Long> bytes = new TreeMap<>();
  private final TreeMap<Long, Long> sampled = new TreeMap<>();

  /** What has been added so far; what is added later is not in it. */
  CachedPages copy() {
    CachedPages copy = new CachedPages();
    copy.bytes.putAll(bytes);
    copy.sampled.putAll(sampled);
    return copy;
  }

  /** Adds data that lies from {@code start} to {@code end}. */
  void add(long start, long end) {
    for (long page = pageOf(start); page < end; page += HUGE_PAGE) {
      bytes.merge(page, Math.min(end, page + HUGE_PAGE) - Math.max(start, page), Long::sum);
    }
  }

  /** Adds {@code weight} bytes of which it is only known that some lie at {@code address}. */
  void addAround(long address, long weight) {
    sampled.merge(pageOf(address), weight, Long::sum);
    bytes.merge(pageOf(address), 0L, Long::sum);
  }

  /** The ranges that hold some. */
  Set<Long> pages() {
    return bytes.keySet();
  }

  /**
   * Bytes of the range at {@code page} that are cached, or probably are: a sample of a page that is cached as a whole often has a third less
   * than its share.
   */
  long at(long page) {
    return Math.min(HUGE_PAGE, bytes.getOrDefault(page, 0L) + sampled.getOrDefault(page, 0L) * 3 / 2);
  }

  private static long pageOf(long address) {
    return Math.floorDiv(address, HUGE_PAGE) * HUGE_PAGE;
  }

  /** First addresses of those ranges of which half or more is cached and something is not on huge pages. */
  List<Long> worthwhile(Runs huge) {
    return bytes.keySet().stream().filter(page -> at(page) >= Placement.LEAST_BYTES)
        .filter(page -> huge.within(page, page + HUGE_PAGE) < HUGE_PAGE).toList();
  }

  /** Cached bytes, and those of them that are on huge pages. */
  long[] total(Runs huge) {
    long all = 0;
    long on = 0;
    for (Map.Entry<Long, Long> page : bytes.entrySet()) {
      long cached = Math.min(page.getValue() + sampled.getOrDefault(page.getKey(), 0L), HUGE_PAGE);
      all += cached;
      on += huge.within(page.getKey(), page.getKey() + HUGE_PAGE) == HUGE_PAGE ? cached : 0;
    }
    return new long[] {all, on};
  }

  /** Runs of huge pages, wherever there is cached data. */
  Runs huge(Kernel kernel) {
    Runs found = new Runs();
    long start = -1;
    long end = -1;
    for (long page : bytes.keySet()) {
      // One question for what is close together.
      if (page > end + 64 * HUGE_PAGE) {
        found.addAll(start < 0 ? new long[0] : kernel.hugeRuns(start, end));
        start = page;
      }
      end = page + HUGE_PAGE;
    }
    found.addAll(start < 0 ? new long[0] : kernel.hugeRuns(start, end));
    return found;
  }
}
