package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.hiroma.jvm.JavaHeap;
import java.util.List;
import org.junit.jupiter.api.Test;

/** In this JVM, which has a heap as executors have it. */
class NativeTest {
  private static final int ENOMEM = 12;

  @Test
  void theHeapIsWhereTheJvmAndTheKernelSayAndRegionsTellWhatTheyHold() {
    assertEquals("", Native.problem());
    JavaHeap heap = Native.heap();
    long bytes = heap.regionBytes();
    byte[][] chunks = new byte[3][(int) Chunks.fitting(bytes)];
    List<Region> regions = new Heap(heap).regions();
    assertEquals(heap.length() / bytes, regions.size());
    assertEquals(heap.base(), regions.get(0).bottom());
    List<Region> humongous = regions.stream().filter(region -> region.kind() == Region.Kind.HUMONGOUS).toList();
    assertTrue(humongous.size() >= chunks.length, regions::toString);
    if (Chunks.fitting(bytes) > bytes / 2) {
      assertTrue(humongous.stream().filter(region -> region.top() - region.bottom() > bytes - 64).count() >= chunks.length,
          () -> "a chunk fills its region: " + humongous);
    }
    assertTrue(humongous.get(0).bottom() < heap.base() + heap.length() / 2, "humongous regions come from the low end");
    assertTrue(regions.stream().anyMatch(region -> region.kind() == Region.Kind.YOUNG));
  }

  @Test
  void adviceOnWhatIsNotMappedIsAnErrorAndNoCrash() {
    assertEquals(ENOMEM, Native.advise(0, CachedPages.HUGE_PAGE, Native.HUGE));
    assertNotEquals(0, Native.advise(-1, -1, Native.COLLAPSE));
    assertNotEquals(0, Native.advise(0, 4096, 77));
  }
}
