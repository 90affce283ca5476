package io.hiroma;

import io.hiroma.jvm.NativeCalls;
import io.hiroma.jvm.Natives;
import io.hiroma.jvm.PageMap;
import java.lang.ref.Cleaner;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Memory outside the heap on whole huge pages, which goes back to the system when no buffer of it can be reached any more. */
final class HugeMemory {
  static final long HUGE_PAGE = 2L << 20;
  /** Whole huge pages that a buffer can have. */
  private static final long BYTES_MAX = Integer.MAX_VALUE - HUGE_PAGE + 1;
  static final Cleaner CLEANER = Cleaner.create();

  private HugeMemory() {}

  /** Why there is no such memory here; "" if there is. */
  static String problem() {
    return Natives.problem();
  }

  /**
   * Maps at least {@code bytes}, in whole huge pages, as many as a buffer can have.
   *
   * @throws OutOfMemoryError if the system has no room
   */
  static ByteBuffer allocate(long bytes) {
    if (!problem().isEmpty()) {
      throw new IllegalStateException("no memory on huge pages: " + problem());
    }
    if (bytes <= 0 || bytes > BYTES_MAX) {
      throw new IllegalArgumentException("a buffer has 1 to " + BYTES_MAX + " bytes, not " + bytes);
    }
    long whole = Math.floorDiv(bytes + HUGE_PAGE - 1, HUGE_PAGE) * HUGE_PAGE;
    NativeCalls calls = Natives.calls();
    long at = map(calls, whole);
    ByteBuffer memory;
    try {
      memory = calls.buffer(at, whole);
    } catch (RuntimeException | Error error) {
      calls.unmap(at, whole);
      throw error;
    }
    // Slices and views keep the buffer that they were made from alive; the cleaner only keeps its address.
    CLEANER.register(memory, () -> calls.unmap(at, whole));
    return memory;
  }

  /** Maps whole huge pages at an address that is a multiple of one, advised on before anything touches them. */
  private static long map(NativeCalls calls, long bytes) {
    long reserved = bytes + HUGE_PAGE;
    long first = calls.map(reserved);
    if (first < 0) {
      throw new OutOfMemoryError(bytes + " bytes on huge pages: the system has no room (error " + -first + ")");
    }
    long start = Math.floorDiv(first + HUGE_PAGE - 1, HUGE_PAGE) * HUGE_PAGE;
    long end = start + bytes;
    if (start > first) {
      calls.unmap(first, start - first);
    }
    calls.unmap(end, first + reserved - end);
    // A kernel that was built without them refuses; the memory is good all the same.
    calls.advise(start, bytes, NativeCalls.HUGE);
    return start;
  }

  /** {@code length} bytes of {@code memory} from {@code from} on, as a buffer of their own in this machine's byte order. */
  static ByteBuffer piece(ByteBuffer memory, int from, int length) {
    return memory.slice(from, length).order(ByteOrder.nativeOrder());
  }

  /** Bytes of {@code start..end} that are on huge pages. */
  static long huge(long start, long end) {
    long[] runs = PageMap.own().huge(start, end);
    long bytes = 0;
    for (int at = 0; at + 1 < runs.length; at += 2) {
      bytes += Math.max(0, Math.min(end, runs[at + 1]) - Math.max(start, runs[at]));
    }
    return bytes;
  }

  /** Where the memory of a direct buffer begins; 0 for another one. */
  static long address(Buffer buffer) {
    return Natives.calls().address(buffer);
  }
}
