package io.hiroma.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** The pages of the heap of G1: gives advice on them and counts what became of it. Not for several threads at once. */
final class HeapPages {
  private static final int EAGAIN = 11;
  /** After so many refusals in one go the kernel has no huge pages at the moment. */
  private static final int REFUSALS_MAX = 8;

  private final long base;
  private final long length;
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

  /** Huge pages of the heap. */
  Runs huge() {
    return Runs.of(Native.hugeRuns(base, base + length));
  }

  /**
   * Advises that the lowest {@code bytes} of the heap are huge when they are touched, and, if {@code restSmall}, that the rest is not.
   * G1 takes regions for humongous and old objects from there, and those for young ones from the other end (OpenJDK,
   * {@code HeapRegionManager::allocate_free_region}).
   *
   * @return how many bytes were advised on
   * @throws IllegalStateException if the kernel refuses, or does not show the advice in the mapping
   */
  long adviseLow(long bytes, boolean restSmall) throws IOException {
    // A part that is mapped later would not have the advice.
    if (!Smaps.covered(Smaps.read(), base, base + length, "rd")) {
      throw new IllegalStateException("the heap at " + Long.toHexString(base) + " is not mapped as a whole");
    }
    long page = SweepPlan.HUGE_PAGE;
    long start = Math.floorDiv(base + page - 1, page) * page;
    long end = Math.min(Math.floorDiv(start + bytes + page - 1, page) * page, Math.floorDiv(base + length, page) * page);
    int error = Native.advise(start, end - start, Native.HUGE);
    if (error == 0 && restSmall) {
      error = Native.advise(end, base + length - end, Native.SMALL);
    }
    if (error != 0) {
      failures++;
      throw new IllegalStateException("the kernel refuses the advice on the heap: error " + error);
    }
    if (!Smaps.covered(Smaps.read(), start, end, "hg")) {
      throw new IllegalStateException("the kernel took the advice on the heap and does not show it");
    }
    return end - start;
  }

  /** Makes up to {@code most} pages huge that hold what has come to stay; whether the kernel had pages for it. */
  boolean collapse(long cachedBytes, int most) {
    int refusals = 0;
    for (long at : SweepPlan.choose(regions(), huge(), cachedBytes, most)) {
      long started = System.nanoTime();
      int error = Native.advise(at, SweepPlan.HUGE_PAGE, Native.COLLAPSE);
      collapseNanos += System.nanoTime() - started;
      // The region may have been freed meanwhile; that is no failure of anybody.
      if (error != 0 && error != EAGAIN) {
        failures++;
        if (++refusals >= REFUSALS_MAX) {
          return false;
        }
      }
    }
    return true;
  }

  /** Marks what has come to stay for khugepaged, as the paper's earlier method did. */
  boolean mark(long cachedBytes) {
    List<Long> chosen = new ArrayList<>(SweepPlan.choose(regions(), huge(), cachedBytes, Integer.MAX_VALUE));
    chosen.removeAll(advised);
    for (long at : chosen) {
      if (Native.advise(at, SweepPlan.HUGE_PAGE, Native.HUGE) == 0) {
        advised.add(at);
      } else {
        failures++;
        return false;
      }
    }
    return true;
  }
}
