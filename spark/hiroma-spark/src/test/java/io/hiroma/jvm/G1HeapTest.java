package io.hiroma.jvm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** A made-up heap of four regions of 1 MiB, the third of which was never committed. */
class G1HeapTest {
  private static final long MIB = 1 << 20;
  private static final long BASE = 0x7000_0000;

  /** Words by address; everything else cannot be read. */
  private static final class Words extends OwnMemory {
    final Map<Long, Long> words = new HashMap<>();

    Words() {
      super(null);
    }

    @Override
    ByteBuffer read(long address, int length) {
      ByteBuffer bytes = ByteBuffer.allocate(Math.floorDiv(length + 7, 8) * 8).order(ByteOrder.nativeOrder());
      for (int at = 0; at < length; at += 8) {
        Long word = words.get(address + at);
        if (word == null) {
          throw new IllegalStateException("nothing at " + Long.toHexString(address + at));
        }
        bytes.putLong(word);
      }
      return bytes.flip();
    }
  }

  private static Words memory() {
    Words memory = new Words();
    long[][] places = {{0x100, 0x200}, {0x210, BASE}, {0x218, 4 * MIB / 8}, {0x260, 0x300}, {0x268, 4}, {0x310, 0}};
    for (long[] place : places) {
      memory.words.put(place[0], place[1]);
    }
    long[][] regions = {{0, 5}, {1, 16}, {3, 2}};
    for (long[] region : regions) {
      long at = 0x1000 + 0x100 * region[0];
      long bottom = BASE + region[0] * MIB;
      memory.words.put(0x300 + 8 * region[0], at);
      memory.words.putAll(Map.of(at, bottom, at + 8, bottom + MIB, at + 16, bottom + 100, at + 24, region[1]));
    }
    return memory;
  }

  private static VmStructs tables(String prefix) {
    Map<String, VmStructs.Place> fields = new HashMap<>();
    fields.put("Universe::_collectedHeap", new VmStructs.Place(0, 0x100));
    Map<String, Integer> offsets = new HashMap<>(Map.of("CollectedHeap::_reserved", 16, "MemRegion::_start", 0, "MemRegion::_word_size", 8,
        "G1CollectedHeap::_hrm", 64, "G1HeapRegionTable::_base", 0, "G1HeapRegionTable::_length", 8));
    offsets.putAll(Map.of(prefix + "HeapRegionManager::_regions", 32, prefix + "HeapRegion::_bottom", 0, prefix + "HeapRegion::_end", 8,
        prefix + "HeapRegion::_top", 16, prefix + "HeapRegion::_type", 24, prefix + "HeapRegionType::_tag", 0));
    offsets.forEach((name, offset) -> fields.put(name, new VmStructs.Place(offset, 0)));
    return new VmStructs(fields, Map.of(prefix + "HeapRegionType::FreeTag", 0, prefix + "HeapRegionType::YoungMask", 2,
        prefix + "HeapRegionType::HumongousMask", 4));
  }

  @Test
  void regionsAreFoundUnderOldAndNewNames() {
    for (String prefix : new String[] {"", "G1"}) {
      Words memory = memory();
      G1Heap heap = G1Heap.find(memory, tables(prefix));
      assertEquals(BASE, heap.base());
      assertEquals(4 * MIB, heap.length());
      assertEquals(MIB, heap.regionBytes());
      assertArrayEquals(new long[] {BASE, BASE + 100, BASE + MIB, 2, BASE + MIB, BASE + MIB + 100, BASE + 2 * MIB, 3,
          BASE + 3 * MIB, BASE + 3 * MIB + 100, BASE + 4 * MIB, 1},
          heap.regions(memory));
    }
  }

  @Test
  void aHeapThatIsNotAsExpectedIsAnError() {
    Words memory = memory();
    G1Heap heap = G1Heap.find(memory, tables(""));
    memory.words.put(0x1100L, BASE + MIB + 4096);
    String said = assertThrows(IllegalStateException.class, () -> heap.regions(memory)).getMessage();
    assertTrue(said.contains("region 1 should be at 0x70100000 and is at 0x70101000"), said);

    Words odd = memory();
    odd.words.put(0x268L, 3L);
    assertThrows(IllegalStateException.class, () -> G1Heap.find(odd, tables("")));

    VmStructs none = new VmStructs(Map.of(), Map.of());
    said = assertThrows(IllegalStateException.class, () -> G1Heap.find(memory(), none)).getMessage();
    assertTrue(said.contains("Universe::_collectedHeap is missing"), said);
  }

  @Test
  void ownMemoryIsReadAndWhatIsNotMappedIsAnError() {
    ByteBuffer text = ByteBuffer.allocateDirect(200);
    String words = "a name that is longer than one piece of sixty-four bytes, so that it takes two reads at least";
    text.put(words.getBytes(java.nio.charset.StandardCharsets.US_ASCII));
    try (OwnMemory memory = OwnMemory.open()) {
      assertEquals(words, memory.readText(Natives.calls().address(text)));
      assertThrows(IllegalStateException.class, () -> memory.readLong(8));
      assertThrows(IllegalStateException.class, () -> memory.readText(-4));
    }
  }
}
