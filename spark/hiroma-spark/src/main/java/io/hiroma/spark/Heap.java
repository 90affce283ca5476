package io.hiroma.spark;

import io.hiroma.jvm.JavaHeap;
import java.util.List;

/** What the plugin reads of the Java heap. It never changes anything there. */
final class Heap {
  private final JavaHeap heap;

  Heap(JavaHeap heap) {
    this.heap = heap;
  }

  List<Region> regions() {
    return Region.list(heap.regions());
  }

  /** Where objects lie that have come to stay: old and humongous regions that follow each other are one run. */
  Runs staying() {
    Runs staying = new Runs();
    long[] run = new long[2];
    for (Region region : regions()) {
      if (region.kind().stays()) {
        if (region.bottom() != run[1]) {
          staying.addAll(run);
          run = new long[] {region.bottom(), region.bottom()};
        }
        run[1] = region.end();
      }
    }
    staying.addAll(run);
    return staying;
  }

  /** Whether the huge page at {@code page} has anything to do with the heap. */
  boolean touches(long page) {
    return page + CachedPages.HUGE_PAGE > heap.base() && page < heap.base() + heap.length();
  }

  /** Whether an object can be at {@code address}. */
  boolean contains(long address) {
    return address >= heap.base() && address < heap.base() + heap.length();
  }

  /** The heap as {@link RegionMap} draws it. */
  String map() {
    long end = heap.base() + heap.length();
    Runs present = Runs.of(Native.presentRuns(heap.base(), end));
    return RegionMap.of(regions(), present, Runs.of(Native.hugeRuns(heap.base(), end)));
  }
}
