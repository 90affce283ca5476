package io.hiroma;

import java.nio.ByteBuffer;
import java.util.OptionalInt;

/**
 * One piece of memory on huge pages from which many smaller ones are taken. A piece that cannot be reached any more, nor any view of it, goes
 * to the arena's free list and is handed out again, on the same huge pages; no piece can be used after it was given back. The arena's memory
 * goes back to the system when neither it nor a piece can be reached. For any number of threads.
 */
public final class HugeArena {
  /** Pieces begin at multiples of a cache line. */
  private static final int ALIGNMENT = 64;

  private final ByteBuffer memory;
  private final FreeList free;

  /**
   * Maps {@code bytes}, rounded up to whole huge pages, at most 2 GiB.
   *
   * @throws IllegalStateException where {@link HugePages#problem} says why
   * @throws IllegalArgumentException if no buffer can have so many bytes
   * @throws OutOfMemoryError if the system has no room
   */
  public HugeArena(long bytes) {
    memory = HugeMemory.allocate(bytes);
    free = new FreeList(memory.capacity());
  }

  /**
   * {@code bytes} of the arena, all zero, in this machine's byte order.
   *
   * @throws IllegalArgumentException if {@code bytes} is not positive
   * @throws OutOfMemoryError if the arena has no free part so long; the collector's next run may find some
   */
  public ByteBuffer allocate(int bytes) {
    if (bytes <= 0) {
      throw new IllegalArgumentException("a piece has at least one byte, not " + bytes);
    }
    long rounded = Math.floorDiv(bytes + (long) ALIGNMENT - 1, ALIGNMENT) * ALIGNMENT;
    OptionalInt from = take(rounded);
    if (from.isEmpty()) {
      throw new OutOfMemoryError(bytes + " bytes of an arena of " + memory.capacity() + ", of which " + freeBytes() + " are free");
    }
    int length = (int) rounded;
    int start = from.getAsInt();
    ByteBuffer piece = HugeMemory.piece(memory, start, bytes);
    for (int at = 0; at < bytes; at++) {
      piece.put(at, (byte) 0);
    }
    FreeList list = free;
    HugeMemory.CLEANER.register(piece, () -> give(list, start, length));
    return piece;
  }

  private OptionalInt take(long length) {
    synchronized (free) {
      return length > memory.capacity() ? OptionalInt.empty() : free.take((int) length);
    }
  }

  private static void give(FreeList list, int start, int length) {
    synchronized (list) {
      list.give(start, length);
    }
  }

  /** Bytes of the arena. */
  public long capacity() {
    return memory.capacity();
  }

  /** Bytes that are not handed out, or known to be unreachable again. */
  public long freeBytes() {
    synchronized (free) {
      return free.bytes();
    }
  }

  /** Bytes of the arena that are on huge pages now; see {@link HugePages#hugeBytes}. */
  public long hugeBytes() {
    return HugePages.hugeBytes(memory);
  }
}
