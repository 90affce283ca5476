package io.hiroma.jvm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Each way that this JDK has, against what is known and against the other one. */
class NativeCallsTest {
  private static final int ENOMEM = 12;
  private static final int EINVAL = 22;
  private static final int HUGE_PAGE = 2 << 20;
  /** Of an array of bytes, with or without compressed class pointers. */
  private static final int HEADER_MAX = 24;

  private static List<NativeCalls> ways() {
    List<NativeCalls> ways = new ArrayList<>();
    if (JniCalls.class.getResource("/io/hiroma/native/" + System.getProperty("os.arch") + "/libhiroma_jvm.so") != null) {
      ways.add(new JniCalls());
    }
    if (Runtime.version().feature() >= 22) {
      ways.add(new ForeignCalls());
    }
    assertTrue(ways.size() > 0);
    return ways;
  }

  @Test
  void theWayIsTheOneOfThisJdk() {
    assertEquals("", Natives.problem());
    assertEquals("", Natives.note());
    assertEquals(Runtime.version().feature() >= 22 ? "java.lang.foreign" : "JNI", Natives.way());
  }

  @Test
  void wrongAdviceIsAnErrorAndNoCrash() {
    for (NativeCalls calls : ways()) {
      for (int kind = NativeCalls.HUGE; kind <= NativeCalls.SPLIT; kind++) {
        assertEquals(ENOMEM, calls.advise(0, HUGE_PAGE, kind), calls.way());
      }
      assertEquals(EINVAL, calls.advise(1, HUGE_PAGE, NativeCalls.HUGE), calls.way());
      assertEquals(EINVAL, calls.advise(0, HUGE_PAGE, NativeCalls.SPLIT + 1), calls.way());
      assertEquals(EINVAL, calls.advise(0, HUGE_PAGE, -1), calls.way());
      assertNotEquals(0, calls.advise(-1, -1, NativeCalls.COLLAPSE), calls.way());
    }
  }

  @Test
  void symbolsAreThoseOfTheProcess() {
    for (NativeCalls calls : ways()) {
      assertNotEquals(0, calls.symbol("gHotSpotVMStructs"), calls.way());
      assertEquals(0, calls.symbol("no_library_has_this"), calls.way());
    }
    assertEquals(1, ways().stream().mapToLong(calls -> calls.symbol("gHotSpotVMStructs")).distinct().count());
  }

  @Test
  void memoryIsMappedWrittenAndUnmapped() {
    for (NativeCalls calls : ways()) {
      long at = calls.map(HUGE_PAGE);
      assertTrue(at > 0, calls.way());
      ByteBuffer memory = calls.buffer(at, HUGE_PAGE).order(ByteOrder.nativeOrder());
      assertEquals(HUGE_PAGE, memory.capacity());
      assertEquals(at, calls.address(memory), calls.way());
      memory.putLong(HUGE_PAGE - 8, 42);
      try (OwnMemory own = OwnMemory.open()) {
        assertEquals(42, own.readLong(at + HUGE_PAGE - 8));
      }
      assertEquals(0, calls.advise(at, HUGE_PAGE, NativeCalls.SMALL), calls.way());
      calls.unmap(at, HUGE_PAGE);
      try (OwnMemory own = OwnMemory.open()) {
        assertThrows(IllegalStateException.class, () -> own.readLong(at + HUGE_PAGE - 8), calls.way());
      }
      assertEquals(-ENOMEM, calls.map(1L << 60), calls.way());
      assertTrue(calls.map(0) < 0, calls.way());
    }
  }

  @Test
  void buffersAreWhereTheyBegin() {
    ByteBuffer direct = ByteBuffer.allocateDirect(4096).order(ByteOrder.nativeOrder());
    direct.position(100);
    LongBuffer view = direct.slice(256, 64).order(ByteOrder.nativeOrder()).asLongBuffer();
    view.position(3);
    for (NativeCalls calls : ways()) {
      long at = calls.address(direct);
      assertEquals(at + 256, calls.address(view), calls.way());
      assertEquals(0, calls.address(ByteBuffer.allocate(10)), calls.way());
      direct.putLong(0, 77);
      try (OwnMemory own = OwnMemory.open()) {
        assertEquals(77, own.readLong(at));
      }
      assertEquals(100, direct.position());
    }
    assertEquals(1, ways().stream().mapToLong(calls -> calls.address(direct)).distinct().count());
  }

  @Test
  void objectsAreWhereTheirContentIs() {
    // It takes regions of its own, so that no collector moves it.
    byte[] large = new byte[4 * HUGE_PAGE];
    byte[] mark = "what no other array has".getBytes(java.nio.charset.StandardCharsets.US_ASCII);
    System.arraycopy(mark, 0, large, 0, mark.length);
    List<Long> found = new ArrayList<>();
    for (NativeCalls calls : ways()) {
      long[] where = calls.objects(new Object[] {large, null, large});
      assertEquals(0, where[1], calls.way());
      assertEquals(where[0], where[2], calls.way());
      assertEquals(0, calls.objects(new Object[0]).length);
      try (OwnMemory own = OwnMemory.open()) {
        String start = java.nio.charset.StandardCharsets.US_ASCII.decode(own.read(where[0], HEADER_MAX + mark.length)).toString();
        assertTrue(start.contains("what no other array has"), calls.way());
      }
      found.add(where[0]);
    }
    assertEquals(1, found.stream().distinct().count(), found::toString);
  }

  @Test
  void theHeapAndItsRegionsAreTheSame() {
    byte[][] large = new byte[3][4 * HUGE_PAGE];
    List<G1Heap> heaps = ways().stream().map(G1Heap::find).toList();
    for (G1Heap heap : heaps) {
      assertEquals(heaps.get(0).base(), heap.base());
      assertEquals(heaps.get(0).length(), heap.length());
      assertEquals(heaps.get(0).regionBytes(), heap.regionBytes());
      long[] regions = heap.regions();
      assertEquals(heap.base(), regions[0]);
      int count = 0;
      for (int at = 0; at < regions.length; at += JavaHeap.REGION_NUMBERS) {
        count += regions[at + 3] == JavaHeap.HUMONGOUS ? 1 : 0;
      }
      assertTrue(count >= large.length, Arrays.toString(regions));
    }
  }

  @Test
  void pagesAreToldInTheSameWay() {
    List<NativeCalls> ways = ways();
    for (NativeCalls calls : ways) {
      long at = calls.map(4L * HUGE_PAGE);
      calls.advise(at, 4L * HUGE_PAGE, NativeCalls.SMALL);
      ByteBuffer memory = calls.buffer(at, 4L * HUGE_PAGE);
      // Every other MiB, in more runs than the kernel is asked for at a time.
      for (int page = 0; page < 4 * HUGE_PAGE / 4096; page += 2) {
        memory.put(page * 4096, (byte) 1);
      }
      try {
        long[] runs = new PageMap(calls).present(at, at + 4L * HUGE_PAGE);
        assertEquals(4 * HUGE_PAGE / 4096, runs.length, calls.way());
        assertEquals(at, runs[0]);
        assertEquals(at + 4096, runs[1]);
        for (NativeCalls other : ways) {
          assertArrayEquals(runs, new PageMap(other).present(at, at + 4L * HUGE_PAGE), other.way());
          assertEquals(0, new PageMap(other).huge(at, at + 4L * HUGE_PAGE).length);
        }
      } catch (IllegalStateException older) {
        System.out.println("skipped: " + older.getMessage());
        assumeTrue(false);
      } finally {
        calls.unmap(at, 4L * HUGE_PAGE);
      }
    }
  }
}
