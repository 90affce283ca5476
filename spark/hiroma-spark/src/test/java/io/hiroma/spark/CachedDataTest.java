package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.SerializedMemoryEntry;
import org.apache.spark.util.io.ChunkedByteBuffer;
import org.junit.jupiter.api.Test;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/** Blocks of Spark's own kinds, in this JVM. */
class CachedDataTest {
  private static final ClassTag<Object> ANY = ClassTag$.MODULE$.apply(Object.class);
  private static final int PIECE = 64;

  /** Off the heap, where it stays: {@code chunks} pieces that lie one behind the other. */
  static MemoryEntry<?> serialised(int chunks, int bytes) {
    ByteBuffer memory = ByteBuffer.allocateDirect(chunks * bytes);
    ByteBuffer[] pieces = new ByteBuffer[chunks];
    Arrays.setAll(pieces, number -> memory.slice(number * bytes, bytes));
    return new SerializedMemoryEntry<>(new ChunkedByteBuffer(pieces), MemoryMode.OFF_HEAP, ANY);
  }

  private static MemoryEntry<?> deserialised(Object[] values, long bytes) {
    return new DeserializedMemoryEntry<>(values, bytes, MemoryMode.ON_HEAP, ANY);
  }

  private static long bytes(CachedPages pages) {
    return pages.total(new Runs())[0];
  }

  @Test
  void aLookEndsAndTheNextOneGoesOn() throws ReflectiveOperationException {
    List<MemoryEntry<?>> stored = List.of(serialised(CachedData.VISITS_MAX, PIECE), serialised(1, 8 * PIECE));
    CachedData data = new CachedData(null, () -> stored);
    CachedData.Look first = data.look();
    assertFalse(first.complete());
    assertEquals(CachedData.VISITS_MAX * (long) PIECE, bytes(first.pages()));
    CachedData.Look second = data.look();
    assertTrue(second.complete());
    assertEquals(second.bytes(), bytes(second.pages()));
    assertTrue(data.latest().complete());
    // While the next round is under way, what the last one saw is told.
    CachedData.Look third = data.look();
    assertFalse(third.complete());
    assertEquals(third.bytes(), bytes(third.whole()));
    assertFalse(data.latest().complete());
    assertEquals(third.bytes(), bytes(data.latest().whole()));
    assertTrue(data.look().complete());
  }

  @Test
  void aBlockOfManyObjectsTakesSeveralLooks() throws ReflectiveOperationException {
    byte[][] elements = new byte[CachedData.VISITS_MAX * 2][];
    byte[] each = new byte[4096];
    Arrays.fill(elements, each);
    List<MemoryEntry<?>> stored = List.of(deserialised(elements, elements.length * 4200L));
    CachedData data = new CachedData(new Heap(Native.heap()), () -> stored);
    assertFalse(data.look().complete());
    assertTrue(data.look().complete());
  }

  @Test
  void blocksThatSparkHasDroppedAreNeitherKeptNorLookedAt() throws ReflectiveOperationException {
    List<MemoryEntry<?>> stored = new ArrayList<>(List.of(serialised(CachedData.VISITS_MAX, PIECE), serialised(1, PIECE)));
    CachedData data = new CachedData(null, () -> List.copyOf(stored));
    assertFalse(data.look().complete());
    WeakReference<MemoryEntry<?>> dropped = new WeakReference<>(stored.remove(1));
    for (int time = 0; time < 20 && dropped.get() != null; time++) {
      System.gc();
    }
    assertNull(dropped.get(), "a look that is under way keeps a block in memory");
    CachedData.Look rest = data.look();
    assertTrue(rest.complete());
    assertEquals(CachedData.VISITS_MAX * (long) PIECE, bytes(rest.pages()));
  }
}
