package io.hiroma.jvm;

import java.util.Set;
import java.util.stream.LongStream;

/**
 * The heap of the Serial and the Parallel collector: an old generation in one piece, and everything else, which is young (OpenJDK,
 * {@code src/hotspot/share/gc/serial/vmStructs_serial.hpp}, {@code src/hotspot/share/gc/parallel/vmStructs_parallelgc.hpp}). The caller has
 * made sure which collector the JVM runs with.
 */
public final class GenerationsHeap implements JavaHeap {
  private static final String[] SERIAL = {"SerialHeap", "GenCollectedHeap"};
  /** JDK 22 moved the fields. */
  private static final String[] SPACE = {"ContiguousSpace", "Space"};
  private static final String PARALLEL = "ParallelScavengeHeap";
  private static final Set<String> TYPES = Set.of("SerialHeap", "GenCollectedHeap", "ContiguousSpace", "Space", PARALLEL, "PSOldGen",
      "MutableSpace", "TenuredGeneration", "Universe", "CollectedHeap", "MemRegion");

  private final long base;
  private final long length;
  /** Addresses of the bounds of the old generation's space, which moves them when it grows. */
  private final long bottom;
  private final long top;
  private final long end;

  private GenerationsHeap(OwnMemory memory, VmStructs tables, boolean parallel) {
    long[] reserved = tables.heap(memory);
    long heap = reserved[0];
    base = reserved[1];
    length = reserved[2];
    if (parallel) {
      long old = memory.readLong(tables.staticField("_old_gen", PARALLEL));
      long space = memory.readLong(old + tables.field("_object_space", "PSOldGen"));
      bottom = space + tables.field("_bottom", "MutableSpace");
      top = space + tables.field("_top", "MutableSpace");
      end = space + tables.field("_end", "MutableSpace");
    } else {
      long old = memory.readLong(heap + tables.field("_old_gen", SERIAL));
      long space = memory.readLong(old + tables.field("_the_space", "TenuredGeneration"));
      bottom = space + tables.field("_bottom", SPACE);
      top = space + tables.field("_top", SPACE);
      end = space + tables.field("_end", SPACE);
    }
  }

  /**
   * Finds the heap, which does not move.
   *
   * @param parallel whether the collector is Parallel; Serial otherwise
   * @throws IllegalStateException if this JVM is not as expected
   */
  public static GenerationsHeap find(NativeCalls calls, boolean parallel) {
    try (OwnMemory memory = OwnMemory.open()) {
      GenerationsHeap heap = new GenerationsHeap(memory, VmStructs.read(memory, calls::symbol, TYPES::contains), parallel);
      heap.regions(memory);
      return heap;
    }
  }

  @Override
  public long base() {
    return base;
  }

  @Override
  public long length() {
    return length;
  }

  @Override
  public long regionBytes() {
    return 0;
  }

  @Override
  public long[] regions() {
    try (OwnMemory memory = OwnMemory.open()) {
      return regions(memory);
    }
  }

  private long[] regions(OwnMemory memory) {
    long first = memory.readLong(bottom);
    long used = memory.readLong(top);
    long last = memory.readLong(end);
    long limit = base + length;
    if (length <= 0 || first < base || used < first || last < used || last > limit) {
      throw new IllegalStateException("this JVM's heap does not look like one of generations: the old one is at 0x" + Long.toHexString(first)
          + " to 0x" + Long.toHexString(last) + " of 0x" + Long.toHexString(base) + " to 0x" + Long.toHexString(limit));
    }
    LongStream.Builder found = LongStream.builder();
    young(found, base, first);
    found.add(first).add(used).add(last).add(OLD);
    young(found, last, limit);
    return found.build().toArray();
  }

  /** What is not the old generation is young, or reserved for one of them to grow into. */
  private static void young(LongStream.Builder found, long from, long to) {
    if (to > from) {
      found.add(from).add(to).add(to).add(YOUNG);
    }
  }
}
