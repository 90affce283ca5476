package io.hiroma;

import java.lang.ref.Cleaner;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Memory outside the heap on whole huge pages, which goes back to the system when no buffer of it can be reached any more. */
final class HugeMemory {
  static final long HUGE_PAGE = 2L << 20;
  static final Cleaner CLEANER = Cleaner.create();
  private static final String PROBLEM = NativeLibrary.problem();

  private HugeMemory() {}

  /** Why there is no such memory here; "" if there is. */
  static String problem() {
    return PROBLEM;
  }

  /**
   * Maps at least {@code bytes}, in whole huge pages, as many as a buffer can have.
   *
   * @throws OutOfMemoryError if the system has no room
   */
  static ByteBuffer allocate(long bytes) {
    if (!PROBLEM.isEmpty()) {
      throw new IllegalStateException("no memory on huge pages: " + PROBLEM);
    }
    long whole = Math.floorDiv(bytes + HUGE_PAGE - 1, HUGE_PAGE) * HUGE_PAGE;
    if (bytes <= 0 || whole > Integer.MAX_VALUE) {
      throw new IllegalArgumentException("a buffer has 1 to " + (Integer.MAX_VALUE - HUGE_PAGE + 1) + " bytes, not " + bytes);
    }
    ByteBuffer memory = map(whole);
    long at = address(memory);
    // Slices and views keep the buffer that they were made from alive; the cleaner only keeps its address.
    CLEANER.register(memory, () -> unmap(at, whole));
    return memory;
  }

  /** {@code length} bytes of {@code memory} from {@code from} on, as a buffer of their own in this machine's byte order. */
  static ByteBuffer piece(ByteBuffer memory, int from, int length) {
    return memory.slice(from, length).order(ByteOrder.nativeOrder());
  }

  /** Bytes of {@code start..end} that are on huge pages. */
  static long huge(long start, long end) {
    long[] runs = hugeRuns(start, end);
    long bytes = 0;
    for (int at = 0; at + 1 < runs.length; at += 2) {
      bytes += Math.max(0, Math.min(end, runs[at + 1]) - Math.max(start, runs[at]));
    }
    return bytes;
  }

  private static native ByteBuffer map(long bytes);

  private static native void unmap(long address, long bytes);

  /** Where the memory of a direct buffer begins; 0 for another one. */
  static native long address(Buffer buffer);

  private static native long[] hugeRuns(long start, long end);
}
