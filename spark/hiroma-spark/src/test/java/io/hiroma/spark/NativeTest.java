package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

/** In this JVM, which has a heap as executors have it. */
class NativeTest {
  private static final int ENOMEM = 12;

  @Test
  void theHeapIsWhereTheJvmAndTheKernelSayAndRegionsTellWhatTheyHold() {
    assertEquals("", Native.problem());
    HeapPages pages = new HeapPages(Jvm.heapMax());
    long[] heap = Native.heap();
    byte[][] chunks = new byte[3][(int) Completion.CHUNK_BYTES];
    List<Region> regions = pages.regions();
    assertEquals(heap[1] / heap[2], regions.size());
    assertEquals(heap[0], regions.get(0).bottom());
    List<Region> humongous = regions.stream().filter(region -> region.kind() == Region.Kind.HUMONGOUS).toList();
    assertTrue(humongous.size() >= chunks.length, regions::toString);
    assertTrue(humongous.get(0).bottom() < heap[0] + heap[1] / 2, "humongous regions come from the low end");
    assertTrue(regions.stream().anyMatch(region -> region.kind() == Region.Kind.YOUNG));
  }

  @Test
  void adviceOnWhatIsNotMappedIsAnErrorAndNoCrash() {
    assertEquals(ENOMEM, Native.advise(0, CachedPages.HUGE_PAGE, Native.HUGE));
    assertNotEquals(0, Native.advise(-1, -1, Native.COLLAPSE));
    assertNotEquals(0, Native.advise(0, 4096, 77));
  }
}
