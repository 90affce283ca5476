package io.hiroma.spark;

import io.hiroma.NativeLibrary;
import java.nio.Buffer;

/** What Java cannot do on the heap and its pages ({@code crates/jvm/src/export.rs}). */
final class Native {
  /** {@code MADV_HUGEPAGE}, {@code MADV_NOHUGEPAGE}, {@code MADV_COLLAPSE}. */
  static final int HUGE = 0;
  static final int SMALL = 1;
  static final int COLLAPSE = 2;

  private static final String PROBLEM = NativeLibrary.problem();

  private Native() {}

  /** Why the library cannot be used; "" if it can. */
  static String problem() {
    return PROBLEM;
  }

  /** Advises on {@code length} bytes from {@code address} on; 0, or the number of the error (errno(3)). */
  static native int advise(long address, long length, int advice);

  /**
   * First address of the heap, its bytes, and the bytes of a region.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static native long[] heap();

  /**
   * First address, end of what is used, and kind (as in {@link Region.Kind}) of each region of G1.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static native long[] regions();

  /**
   * Where each of {@code objects} is at this moment, 0 for null. The collector may move them at any time.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static native long[] addresses(Object[] objects);

  /** Where the memory of a direct buffer begins; 0 for another one. */
  static native long bufferAddress(Buffer buffer);

  /**
   * First and last address of each run of huge pages.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  static native long[] hugeRuns(long start, long end);

  /**
   * First and last address of each run of pages that are in memory.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  static native long[] presentRuns(long start, long end);
}
