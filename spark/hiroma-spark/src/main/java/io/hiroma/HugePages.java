package io.hiroma;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;

/**
 * A program's own data on huge pages from its first byte on: what the paper calls {@code hp.newarray} (section 5.1), as buffers outside
 * the heap, so that no collector moves or scans them. Contents are zeros at first, in this machine's byte order. The memory goes back to the
 * system when the buffer and all views of it cannot be reached any more. For many small pieces see {@link HugeArena}.
 *
 * <p>Where the kernel has no huge page at the moment, or {@code /sys/kernel/mm/transparent_hugepage/enabled} is {@code never}, the memory is
 * on small pages and good all the same; {@link #hugeBytes} tells.
 *
 * <p>All methods throw {@link IllegalStateException} where {@link #problem} says why, {@link IllegalArgumentException} for sizes that no
 * buffer can have, and {@link OutOfMemoryError} if the system has no room.
 */
public final class HugePages {
  private HugePages() {}

  /** Why nothing can be allocated here, as a sentence; "" if it can. */
  public static String problem() {
    return HugeMemory.problem();
  }

  /** {@code count} bytes. */
  public static ByteBuffer allocate(int count) {
    return HugeMemory.piece(HugeMemory.allocate(count), 0, count);
  }

  /** {@code count} numbers of 64 bits, at most 2 GiB. */
  public static LongBuffer allocateLongs(int count) {
    return bytes(count, Long.BYTES).asLongBuffer();
  }

  /** {@code count} numbers of 32 bits, at most 2 GiB. */
  public static IntBuffer allocateInts(int count) {
    return bytes(count, Integer.BYTES).asIntBuffer();
  }

  /** {@code count} numbers of 64 bits, at most 2 GiB. */
  public static DoubleBuffer allocateDoubles(int count) {
    return bytes(count, Double.BYTES).asDoubleBuffer();
  }

  /** {@code count} numbers of 32 bits, at most 2 GiB. */
  public static FloatBuffer allocateFloats(int count) {
    return bytes(count, Float.BYTES).asFloatBuffer();
  }

  private static ByteBuffer bytes(int count, int each) {
    long bytes = (long) count * each;
    return HugeMemory.piece(HugeMemory.allocate(bytes), 0, (int) bytes);
  }

  /**
   * How many bytes of a direct buffer's memory, from its first element to its capacity, are on huge pages now (Linux 6.7).
   *
   * @throws IllegalArgumentException if the buffer is in the heap
   * @throws IllegalStateException if the kernel does not tell
   */
  public static long hugeBytes(Buffer buffer) {
    if (!buffer.isDirect()) {
      throw new IllegalArgumentException("the buffer is in the heap");
    }
    int each = buffer instanceof LongBuffer || buffer instanceof DoubleBuffer ? Long.BYTES
        : buffer instanceof IntBuffer || buffer instanceof FloatBuffer ? Integer.BYTES : buffer instanceof ByteBuffer ? 1 : Short.BYTES;
    long start = HugeMemory.address(buffer);
    return HugeMemory.huge(start, start + (long) buffer.capacity() * each);
  }
}
