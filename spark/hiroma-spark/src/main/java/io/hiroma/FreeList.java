package io.hiroma;

import java.util.Map;
import java.util.OptionalInt;
import java.util.TreeMap;

/** Which parts of a piece of memory are free: first fit, and neighbours become one again. Not for several threads at once. */
final class FreeList {
  private final TreeMap<Integer, Integer> lengths = new TreeMap<>();

  FreeList(int length) {
    lengths.put(0, length);
  }

  /** Takes {@code length} bytes; where they begin, or nothing if there is no such room. */
  OptionalInt take(int length) {
    for (Map.Entry<Integer, Integer> free : lengths.entrySet()) {
      if (free.getValue() >= length) {
        lengths.remove(free.getKey());
        if (free.getValue() > length) {
          lengths.put(free.getKey() + length, free.getValue() - length);
        }
        return OptionalInt.of(free.getKey());
      }
    }
    return OptionalInt.empty();
  }

  /**
   * Gives back what {@link #take} returned.
   *
   * @throws IllegalStateException if a part of it is free already
   */
  void give(int from, int length) {
    int start = from;
    int end = from + length;
    Map.Entry<Integer, Integer> before = lengths.lowerEntry(end);
    if (before != null && before.getKey() + before.getValue() > from) {
      throw new IllegalStateException(length + " bytes from " + from + " on are given back twice");
    }
    if (before != null && before.getKey() + before.getValue() == from) {
      start = before.getKey();
    }
    Integer after = lengths.remove(end);
    lengths.put(start, end + (after == null ? 0 : after) - start);
  }

  int bytes() {
    return lengths.values().stream().mapToInt(Integer::intValue).sum();
  }
}
