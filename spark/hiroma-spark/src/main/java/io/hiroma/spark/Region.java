package io.hiroma.spark;

import java.util.ArrayList;
import java.util.List;

/**
 * A region of G1: objects lie from {@code bottom} to {@code top}.
 *
 * @param kind what the region is used for
 */
record Region(long bottom, long top, Kind kind) {
  /** In the order of the numbers that {@link io.hiroma.jvm.G1Heap#regions} uses. */
  enum Kind {
    FREE, YOUNG, HUMONGOUS, OLD;

    /** Whether what lies here has come to stay. */
    boolean stays() {
      return this == HUMONGOUS || this == OLD;
    }
  }

  /** Reads what {@link Native#regions} returned. */
  static List<Region> list(long[] numbers) {
    Kind[] kinds = Kind.values();
    List<Region> found = new ArrayList<>(numbers.length / 3);
    for (int at = 0; at + 2 < numbers.length; at += 3) {
      found.add(new Region(numbers[at], numbers[at + 1], kinds[(int) numbers[at + 2]]));
    }
    return found;
  }
}
