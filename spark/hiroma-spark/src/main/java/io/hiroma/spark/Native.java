package io.hiroma.spark;

import io.hiroma.jvm.G1Heap;
import io.hiroma.jvm.GenerationsHeap;
import io.hiroma.jvm.JavaHeap;
import io.hiroma.jvm.NativeCalls;
import io.hiroma.jvm.Natives;
import io.hiroma.jvm.PageMap;
import java.nio.Buffer;

/** What Java cannot do on the heap and its pages, as the plugin uses it. */
final class Native {
  static final int HUGE = NativeCalls.HUGE;
  static final int COLLAPSE = NativeCalls.COLLAPSE;
  static final int SPLIT = NativeCalls.SPLIT;

  private static JavaHeap found;

  private Native() {}

  /** Why there are no native calls; "" if there are. */
  static String problem() {
    return Natives.problem();
  }

  /** Why the kernel does not tell which pages are huge; "" if it does. Only where {@link #problem} has none. */
  static String pagesProblem() {
    return PageMap.own().problem();
  }

  /** Advises on {@code length} bytes from {@code address} on; 0, or the number of the error (errno(3)). */
  static int advise(long address, long length, int advice) {
    return Natives.calls().advise(address, length, advice);
  }

  /**
   * The heap; looked up at the first use.
   *
   * @throws IllegalStateException if this JVM is not as expected, or runs with a collector that has another kind of heap
   */
  static synchronized JavaHeap heap() {
    if (found == null) {
      found = switch (Jvm.collector()) {
        case G1 -> G1Heap.find(Natives.calls());
        case SERIAL -> GenerationsHeap.find(Natives.calls(), false);
        case PARALLEL -> GenerationsHeap.find(Natives.calls(), true);
        case OTHER -> throw new IllegalStateException("heaps of this collector are not known");
      };
    }
    return found;
  }

  /**
   * Where each of {@code objects} is at this moment, 0 for null. The collector may move them at any time.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static long[] addresses(Object[] objects) {
    return Natives.calls().objects(objects);
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
