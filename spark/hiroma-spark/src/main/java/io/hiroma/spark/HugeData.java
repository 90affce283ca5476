package io.hiroma.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongPredicate;

/** Carries out what {@link Placement} decides, and counts what became of it. Not for several threads at once. */
final class HugeData {
  private static final int EAGAIN = 11;
  private static final int ENOMEM = 12;
  private static final int EINVAL = 22;
  /** After so many refusals in one go the kernel has no huge pages at the moment. */
  private static final int REFUSALS_MAX = 8;

  private final Heap heap;
  private final CachedData data;
  private final Budget budget;
  private final Placement placement = new Placement();
  private final Set<Long> marked = new HashSet<>();
  private volatile long failures;
  private volatile long collapseNanos;
  private volatile long returnedBytes;

  /**
   * Looks after {@code data}.
   *
   * @param heap null with a collector whose heap is not known
   */
  HugeData(Heap heap, CachedData data, Budget budget) {
    this.heap = heap;
    this.data = data;
    this.budget = budget;
  }

  long failures() {
    return failures;
  }

  long collapseNanos() {
    return collapseNanos;
  }

  /** Bytes that were huge for cached data and are on small pages again. */
  long returnedBytes() {
    return returnedBytes;
  }

  private LongPredicate stays() {
    Runs staying = heap == null ? new Runs() : heap.staying();
    return page -> heap == null || !heap.touches(page) || staying.within(page, page + CachedPages.HUGE_PAGE) == CachedPages.HUGE_PAGE;
  }

  /** Puts cached data on huge pages, and takes off what is not cached any more; whether there is more to do. */
  boolean place() throws ReflectiveOperationException {
    CachedData.Look look = data.look();
    Placement.Decision decision = placement.decide(look.pages(), look.complete(), look.pages().huge(), stays());
    decision.split().forEach(this::split);
    return collapse(decision.collapse()) || decision.pending() || !look.complete();
  }

  /** Whether some are left for another time. */
  private boolean collapse(List<Long> pages) {
    int refusals = 0;
    for (long page : pages) {
      long started = System.nanoTime();
      if (!budget.allows(started)) {
        return true;
      }
      int error = Native.advise(page, CachedPages.HUGE_PAGE, Native.COLLAPSE);
      long took = System.nanoTime() - started;
      budget.spend(took);
      collapseNanos += took;
      if (error == 0) {
        placement.collapsed(page);
      } else if (isFailure(error, page)) {
        failures++;
        if (++refusals >= REFUSALS_MAX) {
          return true;
        }
      }
    }
    return false;
  }

  /** Data may be gone meanwhile, and outside the heap a mapping may end within the page: these are nobody's failures. */
  private boolean isFailure(int error, long page) {
    boolean inHeap = heap != null && heap.touches(page);
    return error != EAGAIN && (inHeap || error != EINVAL && error != ENOMEM);
  }

  private void split(long page) {
    if (Native.advise(page, CachedPages.HUGE_PAGE, Native.SPLIT) == 0) {
      returnedBytes += CachedPages.HUGE_PAGE;
    }
    placement.split(page);
  }

  /** Takes everything off huge pages that was put there. */
  void returnAll() {
    placement.made().forEach(this::split);
  }

  /** Marks cached data for khugepaged, as the paper's earlier method did; whether there was some, and the kernel took it. */
  boolean mark() throws ReflectiveOperationException {
    CachedPages cached = data.look().pages();
    LongPredicate stays = stays();
    boolean some = false;
    for (long page : cached.worthwhile(cached.huge())) {
      if (stays.test(page) && marked.add(page)) {
        int error = Native.advise(page, CachedPages.HUGE_PAGE, Native.HUGE);
        if (error != 0 && isFailure(error, page)) {
          failures++;
          return false;
        }
        some = true;
      }
    }
    return some;
  }
}
