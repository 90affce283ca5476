package io.hiroma.spark;

import java.util.ArrayList;
import java.util.List;

/** What an executor has reported so far; the longer it runs, the fewer of its reports are kept. */
final class History {
  /** Reports that are kept at most; then every other one goes. */
  static final int SAMPLES = 120;

  /**
   * A report.
   *
   * @param map the heap, as {@link RegionMap} writes it
   * @param millis when it came, since 1970
   */
  record Sample(Usage usage, String map, long millis) {}

  private final List<Sample> samples = new ArrayList<>();
  private Sample last;
  private int step = 1;
  private long count;

  synchronized void add(Usage usage, String map, long millis) {
    last = new Sample(usage, map, millis);
    if (count++ % step != 0) {
      return;
    }
    samples.add(last);
    if (samples.size() == SAMPLES) {
      for (int at = SAMPLES - 1; at > 0; at -= 2) {
        samples.remove(at);
      }
      step *= 2;
    }
  }

  /** The newest report; null before the first one. */
  synchronized Usage last() {
    return last == null ? null : last.usage();
  }

  /** Those that are kept, and the newest one at the end. */
  synchronized List<Sample> samples() {
    List<Sample> all = new ArrayList<>(samples);
    if (last != null && (all.isEmpty() || all.get(all.size() - 1) != last)) {
      all.add(last);
    }
    return all;
  }
}
