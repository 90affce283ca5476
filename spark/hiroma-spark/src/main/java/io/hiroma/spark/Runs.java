package io.hiroma.spark;

import java.util.Map;
import java.util.TreeMap;

/** Ranges of addresses that do not overlap. */
final class Runs {
  private final TreeMap<Long, Long> ends = new TreeMap<>();

  /** Reads what {@link Native#hugeRuns} returned. */
  static Runs of(long... numbers) {
    Runs runs = new Runs();
    runs.addAll(numbers);
    return runs;
  }

  /** Adds what {@link Native#hugeRuns} returned. */
  void addAll(long[] numbers) {
    for (int at = 0; at + 1 < numbers.length; at += 2) {
      ends.put(numbers[at], numbers[at + 1]);
    }
  }

  /** Bytes of {@code start..end} that are in runs. */
  long within(long start, long end) {
    long bytes = 0;
    Map.Entry<Long, Long> run = ends.floorEntry(start);
    if (run == null) {
      run = ends.higherEntry(start);
    }
    while (run != null && run.getKey() < end) {
      bytes += Math.max(0, Math.min(end, run.getValue()) - Math.max(start, run.getKey()));
      run = ends.higherEntry(run.getKey());
    }
    return bytes;
  }
}
