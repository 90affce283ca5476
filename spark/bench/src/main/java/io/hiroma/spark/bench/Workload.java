package io.hiroma.spark.bench;

/** Data that is cached once and gone through again and again. */
interface Workload {
  /** Caches the data, whole. */
  void cache();

  /**
   * Goes through it once.
   *
   * @return a number that says whether the data is still what it was: the same in each iteration, or at least a number
   */
  double iterate();

  /** Whether {@link #iterate} returns the same number every time. */
  boolean repeats();
}
