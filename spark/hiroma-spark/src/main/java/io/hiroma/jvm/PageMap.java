package io.hiroma.jvm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.stream.LongStream;

/** Which pages of this process are in memory, and which are huge. For any number of threads. */
public final class PageMap {
  /** Categories of pages ({@code PAGE_IS_PRESENT}, {@code PAGE_IS_PFNZERO}, {@code PAGE_IS_HUGE}). */
  private static final long PRESENT = 1 << 3;
  private static final long ZERO = 1 << 5;
  private static final long HUGE = 1 << 6;
  /** {@code struct pm_scan_arg}: its size, and where its fields are. */
  private static final int SIZE = 96;
  private static final int START = 16;
  private static final int END = 24;
  private static final int WALK_END = 32;
  private static final int VECTOR = 40;
  private static final int VECTOR_LENGTH = 48;
  private static final int CATEGORY_INVERTED = 64;
  private static final int CATEGORY_MASK = 72;
  private static final int RETURN_MASK = 88;
  /** {@code struct page_region}: start, end, categories. */
  private static final int RUN = 24;
  private static final int RUNS = 512;
  /** The kernel wants the first address of a page; pages of more than 4 KiB have larger ones, of which each is a multiple of this. */
  private static final long PAGE = 4096;

  private final NativeCalls calls;
  private final ByteBuffer argument = ByteBuffer.allocateDirect(SIZE).order(ByteOrder.nativeOrder());
  private final ByteBuffer runs = ByteBuffer.allocateDirect(RUNS * RUN).order(ByteOrder.nativeOrder());

  private static final class Own {
    static final PageMap MAP = new PageMap(Natives.calls());
  }

  /**
   * That of this JVM.
   *
   * @throws IllegalStateException where {@link Natives#problem} says why
   */
  public static PageMap own() {
    if (!Natives.problem().isEmpty()) {
      throw new IllegalStateException(Natives.problem());
    }
    return Own.MAP;
  }

  PageMap(NativeCalls calls) {
    this.calls = calls;
    argument.putLong(0, SIZE).putLong(VECTOR, calls.address(runs)).putLong(VECTOR_LENGTH, RUNS).putLong(CATEGORY_INVERTED, ZERO);
  }

  /** Why this kernel does not tell, as a sentence; "" if it does. */
  public String problem() {
    try {
      huge(0, PAGE);
      return "";
    } catch (IllegalStateException notTold) {
      return notTold.getMessage();
    }
  }

  /**
   * First and last address of each run of pages of {@code start..end} that are on huge pages of their own; the shared huge page of zeros does
   * not count.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  public long[] huge(long start, long end) {
    return runs(start, end, PRESENT | HUGE);
  }

  /** The same of pages that are in memory; shared pages of zeros do not count. */
  public long[] present(long start, long end) {
    return runs(start, end, PRESENT);
  }

  private synchronized long[] runs(long start, long end, long categories) {
    LongStream.Builder found = LongStream.builder();
    argument.putLong(END, end).putLong(CATEGORY_MASK, categories | ZERO).putLong(RETURN_MASK, categories);
    long at = start & -PAGE;
    while (at < end) {
      argument.putLong(START, at).putLong(WALK_END, 0);
      int filled = calls.scan(calls.address(argument));
      if (filled < 0) {
        throw new IllegalStateException("the kernel does not tell which pages are huge (PAGEMAP_SCAN, Linux 6.7): error " + -filled);
      }
      for (int run = 0; run < filled; run++) {
        found.add(runs.getLong(run * RUN)).add(runs.getLong(run * RUN + Long.BYTES));
      }
      long walked = argument.getLong(WALK_END);
      if (walked <= at) {
        break;
      }
      at = walked;
    }
    return found.build().toArray();
  }
}
