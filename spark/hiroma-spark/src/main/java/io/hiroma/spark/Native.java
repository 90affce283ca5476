package io.hiroma.spark;

import io.hiroma.jvm.G1Heap;
import io.hiroma.jvm.NativeCalls;
import io.hiroma.jvm.Natives;
import io.hiroma.jvm.PageMap;
import java.nio.Buffer;

/** What Java cannot do on the heap and its pages, as the plugin uses it. */
final class Native {
  /** {@code MADV_HUGEPAGE}, {@code MADV_NOHUGEPAGE}, {@code MADV_COLLAPSE}. */
  static final int HUGE = NativeCalls.HUGE;
  static final int SMALL = NativeCalls.SMALL;
  static final int COLLAPSE = NativeCalls.COLLAPSE;

  private static G1Heap found;

  private Native() {}

  /** Why there are no native calls; "" if there are. */
  static String problem() {
    return Natives.problem();
  }

  /** Advises on {@code length} bytes from {@code address} on; 0, or the number of the error (errno(3)). */
  static int advise(long address, long length, int advice) {
    return Natives.calls().advise(address, length, advice);
  }

  /** Where the heap is; looked up at the first use. */
  private static synchronized G1Heap found() {
    if (found == null) {
      found = G1Heap.find(Natives.calls());
    }
    return found;
  }

  /**
   * First address of the heap, its bytes, and the bytes of a region.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static long[] heap() {
    G1Heap heap = found();
    return new long[] {heap.base(), heap.length(), heap.regionBytes()};
  }

  /**
   * First address, end of what is used, and kind (as in {@link Region.Kind}) of each region of G1.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static long[] regions() {
    return found().regions();
  }

  /**
   * Where each of {@code objects} is at this moment, 0 for null. The collector may move them at any time.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static long[] addresses(Object[] objects) {
    G1Heap heap = found();
    long[] addresses = Natives.calls().objects(objects);
    for (long address : addresses) {
      if (address != 0 && (address < heap.base() || address >= heap.base() + heap.length())) {
        throw new IllegalStateException("this JVM's heap does not look like that of G1: an object at 0x" + Long.toHexString(address));
      }
    }
    return addresses;
  }

  /** Where the memory of a direct buffer begins; 0 for another one. */
  static long bufferAddress(Buffer buffer) {
    return Natives.calls().address(buffer);
  }

  /**
   * First and last address of each run of huge pages.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  static long[] hugeRuns(long start, long end) {
    return PageMap.own().huge(start, end);
  }

  /**
   * First and last address of each run of pages that are in memory.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  static long[] presentRuns(long start, long end) {
    return PageMap.own().present(start, end);
  }
}
