package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.spark.storage.memory.MemoryEntry;
import org.junit.jupiter.api.Test;

/** Cached data of this JVM on a kernel that does what the tests want, and a clock that they move. */
class HugeDataTest {
  private static final int ENOMEM = 12;
  private static final long MILLI = 1_000_000;
  private static final int CHUNKS = 16;
  private static final int CHUNK_BYTES = 2 << 20;

  /** A kernel without huge pages if there is {@code noMemory}, and one that leaves them as they are if they are {@code locked}. */
  private static final class Fake implements Kernel {
    private final TreeSet<Long> huge = new TreeSet<>();
    private boolean noMemory;
    private boolean locked;
    private int collapses;

    @Override
    public int advise(long page, int advice) {
      if (advice == Native.SPLIT) {
        return !locked && !huge.remove(page) ? ENOMEM : 0;
      }
      collapses++;
      return noMemory || !huge.add(page) ? ENOMEM : 0;
    }

    @Override
    public long[] hugeRuns(long start, long end) {
      return huge.subSet(start, end).stream().flatMap(page -> List.of(page, page + CachedPages.HUGE_PAGE).stream())
          .mapToLong(Long::longValue).toArray();
    }

    @Override
    public long[] presentRuns(long start, long end) {
      return new long[] {start, end};
    }
  }

  private final Fake kernel = new Fake();
  private final List<MemoryEntry<?>> stored = new ArrayList<>(List.of(CachedDataTest.serialised(CHUNKS, CHUNK_BYTES)));
  private long now;
  private final HugeData pages = new HugeData(null, new CachedData(null, () -> List.copyOf(stored)), new Budget(10, 0), kernel, () -> now);

  private HugeData.Outcome later(long millis) throws ReflectiveOperationException {
    now += millis * MILLI;
    return pages.place();
  }

  @Test
  void whatIsCachedBecomesHugeAndWhatIsDroppedSmall() throws ReflectiveOperationException {
    assertEquals(HugeData.Outcome.DONE, later(0));
    assertTrue(kernel.huge.size() >= CHUNKS - 1, () -> "" + kernel.huge);
    long bytes = kernel.huge.size() * CachedPages.HUGE_PAGE;
    stored.clear();
    assertEquals(HugeData.Outcome.MORE, later(200));
    assertEquals(HugeData.Outcome.DONE, later(200));
    assertEquals(0, kernel.huge.size());
    assertEquals(bytes, pages.returnedBytes());
  }

  @Test
  void aKernelWithoutHugePagesIsAskedRarely() throws ReflectiveOperationException {
    kernel.noMemory = true;
    for (int look = 0; look < 300; look++) {
      assertEquals(HugeData.Outcome.REFUSED, later(200));
    }
    // In one minute: eight times at once, and that ever more rarely.
    assertTrue(kernel.collapses >= 16 && kernel.collapses <= 96, () -> "" + kernel.collapses);
    assertEquals(kernel.collapses, pages.failures());
    kernel.noMemory = false;
    assertEquals(HugeData.Outcome.DONE, later(15_000));
    assertTrue(kernel.huge.size() >= CHUNKS - 1);
  }

  @Test
  void aPageThatIsLockedIsGivenBackLater() throws ReflectiveOperationException {
    later(0);
    stored.clear();
    kernel.locked = true;
    later(200);
    assertEquals(HugeData.Outcome.REFUSED, later(200));
    assertEquals(0, pages.returnedBytes());
    pages.returnAll();
    assertEquals(0, pages.returnedBytes());
    kernel.locked = false;
    assertEquals(HugeData.Outcome.DONE, later(200));
    assertEquals(0, kernel.huge.size());
    assertTrue(pages.returnedBytes() >= (CHUNKS - 1) * CachedPages.HUGE_PAGE);
  }
}
