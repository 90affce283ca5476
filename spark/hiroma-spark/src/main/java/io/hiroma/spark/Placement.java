package io.hiroma.spark;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.LongPredicate;

/**
 * Decides which ranges of 2 MiB are put on huge pages, and which are taken off them again, from where cached data is seen to lie. It knows
 * no clock and calls nobody; addresses stand for the pages that begin there.
 */
final class Placement {
  private static final long PAGE = CachedPages.HUGE_PAGE;
  /** A page of which less is cached stays small. */
  static final long LEAST_BYTES = PAGE / 2;
  /** Of a page that was made huge less is cached only when its data is gone: between the two figures nothing changes. */
  private static final long GONE_BYTES = PAGE / 4;
  /** What else may be on the pages that were made huge: one part in so many of what is cached. */
  private static final long OTHER_SHARE = 10;

  private final TreeSet<Long> made = new TreeSet<>();
  /** What one look found to be gone; the next one of everything must agree, since the collector moves objects meanwhile. */
  private Set<Long> doubtful = Set.of();

  /**
   * What is to be done.
   *
   * @param collapse pages to make huge, those first that are cached as a whole
   * @param split pages to make small
   * @param pending whether another look is needed even if nothing changes
   */
  record Decision(List<Long> collapse, List<Long> split, boolean pending) {}

  /**
   * Decides.
   *
   * @param cached where cached data was seen
   * @param complete whether everything that is cached was looked at
   * @param huge which of that is on huge pages
   * @param stays whether the collector leaves what lies on a page where it is; true outside the heap
   */
  Decision decide(CachedPages cached, boolean complete, Runs huge, LongPredicate stays) {
    Set<Long> gone = new HashSet<>();
    for (long page : made) {
      if (!stays.test(page) || complete && cached.at(page) < GONE_BYTES) {
        gone.add(page);
      }
    }
    List<Long> split = new ArrayList<>(gone);
    split.removeIf(page -> !doubtful.contains(page));
    doubtful = complete ? gone : stillDoubtful(cached, gone);
    return new Decision(collapse(cached, huge, stays, gone), split, gone.size() > split.size());
  }

  /** A look that did not see everything confirms no doubt, and takes back only those about pages on which it saw data. */
  private Set<Long> stillDoubtful(CachedPages cached, Set<Long> gone) {
    Set<Long> still = new HashSet<>(gone);
    doubtful.stream().filter(page -> made.contains(page) && cached.at(page) < GONE_BYTES).forEach(still::add);
    return still;
  }

  private List<Long> collapse(CachedPages cached, Runs huge, LongPredicate stays, Set<Long> gone) {
    long all = 0;
    long other = 0;
    List<Long> candidates = new ArrayList<>();
    for (long page : cached.pages()) {
      all += cached.at(page);
      if (huge.within(page, page + PAGE) == PAGE) {
        other += made.contains(page) && !gone.contains(page) ? PAGE - cached.at(page) : 0;
      } else if (cached.at(page) >= LEAST_BYTES && stays.test(page)) {
        candidates.add(page);
      }
    }
    candidates.sort(Comparator.comparingLong((Long page) -> -cached.at(page)).thenComparing(Comparator.naturalOrder()));
    List<Long> chosen = new ArrayList<>();
    for (long page : candidates) {
      other += PAGE - cached.at(page);
      if (other > all / OTHER_SHARE) {
        break;
      }
      chosen.add(page);
    }
    return chosen;
  }

  /** Takes note that a page was made huge. */
  void collapsed(long page) {
    made.add(page);
  }

  /** Takes note that a page was made small, or is not there any more. */
  void split(long page) {
    made.remove(page);
  }

  /** Pages that were made huge and not small again. */
  List<Long> made() {
    return List.copyOf(made);
  }
}
