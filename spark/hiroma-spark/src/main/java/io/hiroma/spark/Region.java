package io.hiroma.spark;

import io.hiroma.jvm.JavaHeap;
import java.util.ArrayList;
import java.util.List;

/**
 * A part of the heap that is used for one thing: a region of G1, or a generation. Objects lie from {@code bottom} to {@code top}.
 *
 * @param end where the next one begins
 * @param kind what it is used for
 */
record Region(long bottom, long top, long end, Kind kind) {
  /** In the order of the numbers of {@link JavaHeap}. */
  enum Kind {
    FREE, YOUNG, HUMONGOUS, OLD;

    /** Whether what lies here has come to stay. */
    boolean stays() {
      return this == HUMONGOUS || this == OLD;
    }
  }

  long bytes() {
    return end - bottom;
  }

  /** Reads what {@link JavaHeap#regions} returned. */
  static List<Region> list(long[] numbers) {
    Kind[] kinds = Kind.values();
    List<Region> found = new ArrayList<>(numbers.length / JavaHeap.REGION_NUMBERS);
    for (int at = 0; at + JavaHeap.REGION_NUMBERS <= numbers.length; at += JavaHeap.REGION_NUMBERS) {
      found.add(new Region(numbers[at], numbers[at + 1], numbers[at + 2], kinds[(int) numbers[at + 3]]));
    }
    return found;
  }
}
