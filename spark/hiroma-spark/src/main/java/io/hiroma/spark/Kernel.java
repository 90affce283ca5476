package io.hiroma.spark;

/** What is asked of the kernel about this process's pages. */
interface Kernel {
  /** The one that this runs on. */
  Kernel REAL = new Kernel() {
    @Override
    public int advise(long page, int advice) {
      return Native.advise(page, CachedPages.HUGE_PAGE, advice);
    }

    @Override
    public long[] hugeRuns(long start, long end) {
      return Native.hugeRuns(start, end);
    }

    @Override
    public long[] presentRuns(long start, long end) {
      return Native.presentRuns(start, end);
    }
  };

  /** Advises on the huge page at {@code page}; 0, or the number of the error (errno(3)). */
  int advise(long page, int advice);

  /** As {@link Native#hugeRuns}. */
  long[] hugeRuns(long start, long end);

  /** As {@link Native#presentRuns}. */
  long[] presentRuns(long start, long end);

  /** Whether all of {@code page} is huge; not if the kernel does not tell. */
  default boolean huge(long page) {
    try {
      return whole(hugeRuns(page, page + CachedPages.HUGE_PAGE), page);
    } catch (IllegalStateException notTold) {
      return false;
    }
  }

  /** Whether all of {@code page} is in memory; not if the kernel does not tell. */
  default boolean present(long page) {
    try {
      return whole(presentRuns(page, page + CachedPages.HUGE_PAGE), page);
    } catch (IllegalStateException notTold) {
      return false;
    }
  }

  private static boolean whole(long[] runs, long page) {
    return Runs.of(runs).within(page, page + CachedPages.HUGE_PAGE) == CachedPages.HUGE_PAGE;
  }
}
