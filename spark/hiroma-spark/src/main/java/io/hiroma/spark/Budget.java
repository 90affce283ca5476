package io.hiroma.spark;

/** Time that may be spent: a share of the time that goes by, of which some is saved while nothing is to be done. */
final class Budget {
  /** What is there at the start, and saved at most. */
  static final long SAVED_NANOS_MAX = 200_000_000;

  private final long percent;
  private long saved = SAVED_NANOS_MAX;
  private long beforeNanos;

  Budget(int percent, long nowNanos) {
    this.percent = percent;
    beforeNanos = nowNanos;
  }

  /** Whether something may begin at {@code nowNanos}. */
  boolean allows(long nowNanos) {
    saved = Math.min(SAVED_NANOS_MAX, saved + (nowNanos - beforeNanos) * percent / 100);
    beforeNanos = nowNanos;
    return saved > 0;
  }

  /** Counts what it took; what is overspent is waited for. */
  void spend(long nanos) {
    saved -= nanos;
  }
}
