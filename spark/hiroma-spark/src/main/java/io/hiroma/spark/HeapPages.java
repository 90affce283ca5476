package io.hiroma.spark;

import java.io.IOException;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** The pages of the heap of G1: gives advice on them and counts what became of it. Not for several threads at once. */
final class HeapPages {
  private static final int EAGAIN = 11;
  private static final int ENOMEM = 12;
  private static final int EINVAL = 22;
  /** After so many refusals in one go the kernel has no huge pages at the moment. */
  private static final int REFUSALS_MAX = 8;

  private final long base;
  private final long length;
  private final long regionBytes;
  private long advisedStart;
  private volatile long advisedEnd;
  private final Set<Long> advised = new HashSet<>();
  private volatile long failures;
  private volatile long collapseNanos;

  /**
   * Finds the heap.
   *
   * @throws IllegalStateException if it is not where this JVM says
   */
  HeapPages(long heapMax) {
    long[] heap = Native.heap();
    base = heap[0];
    length = heap[1];
    regionBytes = heap[2];
    if (length != heapMax) {
      throw new IllegalStateException("the JVM reserved " + length + " bytes for a heap of " + heapMax);
    }
  }

  long failures() {
    return failures;
  }

  long collapseNanos() {
    return collapseNanos;
  }

  List<Region> regions() {
    return Region.list(Native.regions());
  }

  /** Where young regions are. */
  Runs young() {
    Runs young = new Runs();
    regions().stream().filter(region -> region.kind() == Region.Kind.YOUNG)
        .forEach(region -> young.addAll(new long[] {region.bottom(), region.bottom() + regionBytes}));
    return young;
  }

  /** How many of {@code cached} bytes on the heap cannot be in what was advised on: they are young, and will be moved there. */
  private long arriving(List<Region> regions, long cached) {
    long staying = regions.stream().filter(region -> region.bottom() >= advisedStart && region.kind().stays()).count() * regionBytes;
    return Math.max(0, cached - staying);
  }

  /** The heap as {@link RegionMap} draws it. */
  String map() {
    Runs present = Runs.of(Native.presentRuns(base, base + length));
    return RegionMap.of(regions(), regionBytes, present, Runs.of(Native.hugeRuns(base, base + length)));
  }

  /**
   * Makes sure that at least {@code ahead} bytes of the heap's lowest free regions are huge when they are touched, and as much more as is to come
   * there of the {@code cached} bytes. What is advised on begins
   * at the first region that was free at the first call, and never has more than {@code most} bytes. G1 takes regions for humongous and old
   * objects from there, and those for young ones from the other end (OpenJDK, {@code HeapRegionManager::allocate_free_region}).
   *
   * @param restSmall whether the rest of the heap is advised to be on small pages, at the first call
   * @throws IllegalStateException if the kernel refuses, or does not show the advice in the mapping
   */
  void adviseAhead(long ahead, long cached, long most, boolean restSmall) throws IOException {
    long free = 0;
    long end = advisedEnd;
    List<Region> regions = regions();
    long wanted = ahead + arriving(regions, cached);
    for (Region region : regions) {
      if (region.kind() == Region.Kind.FREE) {
        if (advisedEnd == 0) {
          begin(region.bottom(), restSmall);
          end = advisedEnd;
        }
        free += regionBytes;
        end = Math.max(end, region.bottom() + regionBytes);
      }
      if (free >= wanted || advisedEnd != 0 && region.bottom() + regionBytes - advisedStart >= most) {
        break;
      }
    }
    if (end > advisedEnd && advisedEnd != 0) {
      advise(advisedEnd, end, Native.HUGE);
      // A look at all mappings takes as long as caching some MiB: the first advice tells.
      if (advisedEnd == advisedStart && !Smaps.covered(Smaps.read(), advisedStart, end, "hg")) {
        throw new IllegalStateException("the kernel took the advice on the heap and does not show it");
      }
      advisedEnd = end;
    }
  }

  private void begin(long first, boolean restSmall) throws IOException {
    // A part that is mapped later would not have the advice.
    if (!Smaps.covered(Smaps.read(), base, base + length, "rd")) {
      throw new IllegalStateException("the heap at " + Long.toHexString(base) + " is not mapped as a whole");
    }
    long page = CachedPages.HUGE_PAGE;
    advisedStart = Math.floorDiv(first + page - 1, page) * page;
    advisedEnd = advisedStart;
    if (restSmall) {
      advise(base, base + length, Native.SMALL);
    }
  }

  private void advise(long start, long end, int advice) {
    int error = Native.advise(start, end - start, advice);
    if (error != 0) {
      failures++;
      throw new IllegalStateException("the kernel refuses the advice on the heap: error " + error);
    }
  }

  /** Bytes that were advised on so far. */
  long advisedBytes() {
    return advisedEnd - advisedStart;
  }

  /** Makes those of {@code chosen} huge that hold what has come to stay; whether the kernel had pages for it. */
  boolean collapse(List<Long> chosen) {
    int refusals = 0;
    for (long at : staying(chosen)) {
      long started = System.nanoTime();
      int error = Native.advise(at, CachedPages.HUGE_PAGE, Native.COLLAPSE);
      collapseNanos += System.nanoTime() - started;
      // The data may have gone meanwhile, and outside the heap a mapping may end within the page; that is no failure of anybody.
      if (error != 0 && error != EAGAIN && (inHeap(at) || error != EINVAL && error != ENOMEM)) {
        failures++;
        if (++refusals >= REFUSALS_MAX) {
          return false;
        }
      }
    }
    return true;
  }

  /** Marks what has come to stay for khugepaged, as the paper's earlier method did. */
  boolean mark(List<Long> chosen) {
    for (long at : staying(chosen)) {
      if (!advised.contains(at)) {
        int error = Native.advise(at, CachedPages.HUGE_PAGE, Native.HUGE);
        if (error != 0 && (inHeap(at) || error != ENOMEM)) {
          failures++;
          return false;
        }
        advised.add(at);
      }
    }
    return true;
  }

  /** Those of {@code chosen} that are outside the heap, or in regions in it that are old or humongous. */
  private List<Long> staying(List<Long> chosen) {
    Runs inUse = new Runs();
    // Each region of 2 MiB and more is a run of whole huge pages; smaller ones are one run if they follow each other.
    long[] run = new long[2];
    for (Region region : regions()) {
      if (region.kind().stays()) {
        if (region.bottom() != run[1]) {
          inUse.addAll(run);
          run = new long[] {region.bottom(), region.bottom()};
        }
        run[1] = region.bottom() + regionBytes;
      }
    }
    inUse.addAll(run);
    return chosen.stream().filter(at -> !inHeap(at) || inUse.within(at, at + CachedPages.HUGE_PAGE) == CachedPages.HUGE_PAGE).toList();
  }

  private boolean inHeap(long page) {
    return page + CachedPages.HUGE_PAGE > base && page < base + length;
  }
}
