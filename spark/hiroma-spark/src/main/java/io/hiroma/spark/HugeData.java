package io.hiroma.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongPredicate;
import java.util.function.LongSupplier;

/** Carries out what {@link Placement} decides, and counts what became of it. Not for several threads at once. */
final class HugeData {
  private static final int EAGAIN = 11;
  private static final int ENOMEM = 12;
  private static final int EINVAL = 22;
  /** After so many refusals in one go the kernel has no huge pages at the moment. */
  private static final int REFUSALS_MAX = 8;
  /** Then it is asked again after the first time, and after twice that, and so on up to the second one. */
  private static final long RETRY_NANOS_MIN = 200_000_000L;
  private static final long RETRY_NANOS_MAX = 15_000_000_000L;
  /** How often everything that is to be given back is tried: a page can be locked for a moment. */
  private static final int RETURNS = 3;

  /** How a go has ended. */
  enum Outcome {
    DONE,
    /** There is more to do soon. */
    MORE,
    /** There is more to do, but the kernel does not do it now. */
    REFUSED
  }

  private final Heap heap;
  private final CachedData data;
  private final Budget budget;
  private final Kernel kernel;
  private final LongSupplier nanoTime;
  private final Placement placement = new Placement();
  private final Set<Long> marked = new HashSet<>();
  private volatile long failures;
  private volatile long collapseNanos;
  private volatile long returnedBytes;
  private boolean placed;
  private long retryNanos;
  private long retryAt;

  /**
   * Looks after {@code data}.
   *
   * @param heap null with a collector whose heap is not known
   */
  HugeData(Heap heap, CachedData data, Budget budget) {
    this(heap, data, budget, Kernel.REAL, System::nanoTime);
  }

  HugeData(Heap heap, CachedData data, Budget budget, Kernel kernel, LongSupplier nanoTime) {
    this.heap = heap;
    this.data = data;
    this.budget = budget;
    this.kernel = kernel;
    this.nanoTime = nanoTime;
    retryAt = nanoTime.getAsLong();
  }

  long failures() {
    return failures;
  }

  long collapseNanos() {
    return collapseNanos;
  }

  /** Whether the last go came to the end of what is cached, and left nothing for another one. */
  boolean placed() {
    return placed;
  }

  /** Bytes that were huge for cached data and are on small pages again. */
  long returnedBytes() {
    return returnedBytes;
  }

  private LongPredicate stays() {
    Runs staying = heap == null ? new Runs() : heap.staying();
    return page -> heap == null || !heap.touches(page) || staying.within(page, page + CachedPages.HUGE_PAGE) == CachedPages.HUGE_PAGE;
  }

  /** Puts cached data on huge pages, and takes off what is not cached any more. */
  Outcome place() throws ReflectiveOperationException {
    CachedData.Look look = data.look();
    Placement.Decision decision = placement.decide(look.pages(), look.complete(), look.pages().huge(kernel), stays());
    boolean allSplit = splitAll(decision.split());
    Outcome collapsed = collapse(decision.collapse());
    placed = look.complete() && collapsed != Outcome.MORE;
    if (collapsed == Outcome.MORE || decision.pending() || !look.complete()) {
      return Outcome.MORE;
    }
    return allSplit ? collapsed : Outcome.REFUSED;
  }

  private Outcome collapse(List<Long> pages) {
    if (nanoTime.getAsLong() - retryAt < 0) {
      return pages.isEmpty() ? Outcome.DONE : Outcome.REFUSED;
    }
    int made = 0;
    int refusals = 0;
    for (long page : pages) {
      long started = nanoTime.getAsLong();
      boolean allowed = budget.allows(started);
      if (!allowed || refusals >= REFUSALS_MAX) {
        return made == 0 && refusals > 0 ? refused() : Outcome.MORE;
      }
      int error = kernel.advise(page, Native.COLLAPSE);
      long took = nanoTime.getAsLong() - started;
      budget.spend(took);
      collapseNanos += took;
      if (error == 0) {
        placement.collapsed(page);
        retryNanos = 0;
        made++;
      } else if (isFailure(error, page)) {
        failures++;
        refusals++;
      }
    }
    return made == 0 && refusals > 0 ? refused() : Outcome.DONE;
  }

  /** Each of these tries had the kernel search its memory in vain. */
  private Outcome refused() {
    retryNanos = Math.min(RETRY_NANOS_MAX, Math.max(RETRY_NANOS_MIN, 2 * retryNanos));
    retryAt = nanoTime.getAsLong() + retryNanos;
    return Outcome.REFUSED;
  }

  /** Data may be gone meanwhile, and outside the heap a mapping may end within the page: these are nobody's failures. */
  private boolean isFailure(int error, long page) {
    if (error == EAGAIN || heap != null && heap.touches(page)) {
      return error != EAGAIN;
    }
    return error == ENOMEM ? kernel.present(page) : error != EINVAL;
  }

  /** Whether none of {@code pages} is huge now. */
  private boolean splitAll(List<Long> pages) {
    boolean all = true;
    for (long page : pages) {
      all &= split(page);
    }
    return all;
  }

  /** The kernel may accept the advice and leave a page as it is that is locked or shared at the moment: then it stays noted. */
  private boolean split(long page) {
    int error = kernel.advise(page, Native.SPLIT);
    if (kernel.huge(page)) {
      return false;
    }
    if (error == 0) {
      returnedBytes += CachedPages.HUGE_PAGE;
    }
    placement.split(page);
    return true;
  }

  /** Takes everything off huge pages that was put there. */
  void returnAll() {
    for (int time = 0; time < RETURNS && !splitAll(placement.made()); time++) {
      Thread.onSpinWait();
    }
  }

  /** Marks cached data for khugepaged, as the paper's earlier method did. */
  Outcome mark() throws ReflectiveOperationException {
    CachedPages cached = data.look().pages();
    LongPredicate stays = stays();
    boolean some = false;
    for (long page : cached.worthwhile(cached.huge(kernel))) {
      if (stays.test(page) && marked.add(page)) {
        int error = kernel.advise(page, Native.HUGE);
        if (error != 0 && isFailure(error, page)) {
          failures++;
          return Outcome.REFUSED;
        }
        some = true;
      }
    }
    return some ? Outcome.MORE : Outcome.DONE;
  }
}
