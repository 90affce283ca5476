package io.hiroma.jvm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Set;

/**
 * The heap of the G1 collector as the JVM has it: where it is, and what each region is used for (OpenJDK,
 * {@code src/hotspot/share/gc/g1/vmStructs_g1.hpp}; JDK 22 put {@code G1} before the names). The caller has made sure that the JVM runs with
 * G1: the tables look the same if it does not.
 */
public final class G1Heap implements JavaHeap {
  private static final String[] MANAGER = {"G1HeapRegionManager", "HeapRegionManager"};
  private static final String[] REGION = {"G1HeapRegion", "HeapRegion"};
  private static final String[] TYPE = {"G1HeapRegionType", "HeapRegionType"};
  private static final Set<String> TYPES = Set.of("G1HeapRegionManager", "HeapRegionManager", "G1HeapRegion", "HeapRegion", "G1HeapRegionType",
      "HeapRegionType", "Universe", "CollectedHeap", "G1CollectedHeap", "MemRegion", "G1HeapRegionTable");
  /** Regions of 1 MiB to 512 MiB, of which G1 wants about 2,048; with 1 MiB each this is a heap of 1 TiB. */
  private static final long REGIONS_MAX = 1 << 20;
  private final long base;
  private final long length;
  /** Address of the pointers to the regions, and how many there are. */
  private final long table;
  private final int regions;
  private final int bottom;
  private final int top;
  private final int end;
  private final int tag;
  private final int freeTag;
  private final int youngMask;
  private final int humongousMask;

  private G1Heap(OwnMemory memory, VmStructs tables) {
    long[] reserved = tables.heap(memory);
    long heap = reserved[0];
    base = reserved[1];
    length = reserved[2];
    long list = heap + tables.field("_hrm", "G1CollectedHeap") + tables.field("_regions", MANAGER);
    table = memory.readLong(list + tables.field("_base", "G1HeapRegionTable"));
    long count = memory.readLong(list + tables.field("_length", "G1HeapRegionTable"));
    bottom = (int) tables.field("_bottom", REGION);
    top = (int) tables.field("_top", REGION);
    end = (int) tables.field("_end", REGION);
    tag = (int) (tables.field("_type", REGION) + tables.field("_tag", TYPE));
    freeTag = tables.constant("FreeTag", TYPE);
    youngMask = tables.constant("YoungMask", TYPE);
    humongousMask = tables.constant("HumongousMask", TYPE);
    if (count <= 0 || count > REGIONS_MAX || length <= 0 || length % count != 0) {
      throw unlikely(length + " bytes in " + count + " regions");
    }
    regions = (int) count;
  }

  private static IllegalStateException unlikely(String what) {
    return new IllegalStateException("this JVM's heap does not look like that of G1: " + what);
  }

  /**
   * Finds the heap, which does not move.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  public static G1Heap find(NativeCalls calls) {
    try (OwnMemory memory = OwnMemory.open()) {
      return find(memory, VmStructs.read(memory, calls::symbol, TYPES::contains));
    }
  }

  static G1Heap find(OwnMemory memory, VmStructs tables) {
    return new G1Heap(memory, tables);
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
    return length / regions;
  }

  @Override
  public long[] regions() {
    try (OwnMemory memory = OwnMemory.open()) {
      return regions(memory);
    }
  }

  long[] regions(OwnMemory memory) {
    int from = Math.min(Math.min(bottom, top), Math.min(end, tag));
    int to = Math.max(Math.max(bottom, top), Math.max(end, tag)) + Long.BYTES;
    ByteBuffer pointers = memory.read(table, regions * Long.BYTES);
    Pieces pieces = new Pieces(memory, to - from);
    long[] found = new long[regions * REGION_NUMBERS];
    int count = 0;
    for (int number = 0; number < regions; number++) {
      long at = pointers.getLong(number * Long.BYTES);
      // Never committed so far.
      if (at == 0) {
        continue;
      }
      ByteBuffer region = pieces.at(at + from);
      long first = region.getLong(bottom - from);
      long used = region.getLong(top - from);
      long expected = base + number * regionBytes();
      if (first != expected || region.getLong(end - from) != expected + regionBytes() || used < expected || used > expected + regionBytes()) {
        throw unlikely("region " + number + " should be at 0x" + Long.toHexString(expected) + " and is at 0x" + Long.toHexString(first));
      }
      found[count++] = first;
      found[count++] = used;
      found[count++] = expected + regionBytes();
      found[count++] = kind(region.getInt(tag - from));
    }
    return Arrays.copyOf(found, count);
  }

  /** Reads many small pieces of memory that mostly lie close behind one another: some thousand calls of the system less. */
  private static final class Pieces {
    private static final int AHEAD = 64 << 10;
    private final OwnMemory memory;
    private final int length;
    private ByteBuffer read = ByteBuffer.allocate(0);
    private long start;
    /** What follows a piece may not be mapped. */
    private boolean alone;

    Pieces(OwnMemory memory, int length) {
      this.memory = memory;
      this.length = length;
    }

    ByteBuffer at(long address) {
      long offset = address - start;
      if (offset < 0 || offset + length > read.capacity()) {
        start = address;
        offset = 0;
        read = read(address);
      }
      return read.slice((int) offset, length).order(ByteOrder.nativeOrder());
    }

    private ByteBuffer read(long address) {
      if (!alone) {
        try {
          return memory.read(address, AHEAD);
        } catch (IllegalStateException notAllThere) {
          alone = true;
        }
      }
      return memory.read(address, length);
    }
  }

  private int kind(int used) {
    if (used == freeTag) {
      return FREE;
    }
    if ((used & youngMask) != 0) {
      return YOUNG;
    }
    return (used & humongousMask) != 0 ? HUMONGOUS : OLD;
  }
}
