package io.hiroma;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** In this JVM, without Spark. */
class HugePagesTest {
  private static final int MIB = 1 << 20;

  /** The lines of the mapping that {@code address} is in, as the kernel writes them; none if it is not mapped. */
  private static List<String> mapping(long address) throws IOException {
    List<String> lines = Files.readAllLines(Path.of("/proc/self/smaps"));
    int from = -1;
    for (int at = 0; at < lines.size(); at++) {
      String[] range = lines.get(at).split(" ")[0].split("-");
      if (range.length == 2 && !lines.get(at).contains("kB")) {
        if (from >= 0) {
          return lines.subList(from, at);
        }
        if (Long.compareUnsigned(Long.parseUnsignedLong(range[0], 16), address) <= 0
            && Long.compareUnsigned(address, Long.parseUnsignedLong(range[1], 16)) < 0) {
          from = at;
        }
      }
    }
    return from < 0 ? List.of() : lines.subList(from, lines.size());
  }

  private static void assumeHugePages() throws IOException {
    if (Files.readString(Path.of("/sys/kernel/mm/transparent_hugepage/enabled")).contains("[never]")) {
      System.out.println("skipped: transparent huge pages are \"never\"");
      assumeFalse(true);
    }
  }

  @Test
  void numbersAreAlignedAdvisedOnAndKeepTheirValues() throws IOException {
    assumeHugePages();
    assertEquals("", HugePages.problem());
    LongBuffer numbers = HugePages.allocateLongs(MIB);
    long address = HugeMemory.address(numbers);
    assertEquals(0, address % HugeMemory.HUGE_PAGE);
    for (int at = 0; at < numbers.capacity(); at++) {
      assertEquals(0, numbers.get(at));
      numbers.put(at, at * 3L);
    }
    for (int at = 0; at < numbers.capacity(); at++) {
      assertEquals(at * 3L, numbers.get(at));
    }
    List<String> mapping = mapping(address);
    assertTrue(mapping.stream().anyMatch(line -> line.startsWith("VmFlags:") && line.contains(" hg")), mapping::toString);
    long huge = mapping.stream().filter(line -> line.startsWith("AnonHugePages:")).mapToLong(line -> Long.parseLong(line.split("\\s+")[1]))
        .findFirst().orElseThrow() * 1024;
    // How many the kernel had is not ours; what we say must be what it says.
    if (huge == 0) {
      System.out.println("skipped: the kernel has no huge page at the moment");
    }
    assertTrue(HugePages.hugeBytes(numbers) <= 8L * MIB);
    assertEquals(huge > 0, HugePages.hugeBytes(numbers) > 0, mapping::toString);
  }

  @Test
  void everyKindHasTheSizeAndTheByteOrderOfTheMachine() {
    assertEquals(3, HugePages.allocate(3).capacity());
    assertEquals(3, HugePages.allocateInts(3).capacity());
    assertEquals(3, HugePages.allocateFloats(3).capacity());
    assertEquals(3, HugePages.allocateDoubles(3).capacity());
    assertEquals(ByteOrder.nativeOrder(), HugePages.allocateLongs(1).order());
    assertEquals(ByteOrder.nativeOrder(), HugePages.allocate(1).order());
  }

  @Test
  void sizesThatNoBufferCanHaveAreRefused() {
    assertThrows(IllegalArgumentException.class, () -> HugePages.allocate(0));
    assertThrows(IllegalArgumentException.class, () -> HugePages.allocate(-1));
    assertThrows(IllegalArgumentException.class, () -> HugePages.allocateLongs(Integer.MAX_VALUE));
    assertThrows(IllegalArgumentException.class, () -> HugePages.allocate(Integer.MAX_VALUE));
    assertThrows(IllegalArgumentException.class, () -> HugePages.hugeBytes(ByteBuffer.allocate(1)));
    assertThrows(IllegalArgumentException.class, () -> new HugeArena(-5));
  }

  @Test
  void piecesOfAnArenaDoNotOverlapAndAreZero() {
    HugeArena arena = new HugeArena(3 * MIB);
    assertEquals(4 * MIB, arena.capacity());
    ByteBuffer[] pieces = new ByteBuffer[100];
    for (int number = 0; number < pieces.length; number++) {
      pieces[number] = arena.allocate(1_000 + number);
      for (int at = 0; at < pieces[number].capacity(); at++) {
        assertEquals(0, pieces[number].get(at));
        pieces[number].put(at, (byte) number);
      }
    }
    for (int number = 0; number < pieces.length; number++) {
      for (int at = 0; at < pieces[number].capacity(); at++) {
        assertEquals((byte) number, pieces[number].get(at));
      }
    }
    assertThrows(OutOfMemoryError.class, () -> arena.allocate(4 * MIB));
    assertThrows(OutOfMemoryError.class, () -> arena.allocate(Integer.MAX_VALUE));
    assertThrows(IllegalArgumentException.class, () -> arena.allocate(0));
    java.lang.ref.Reference.reachabilityFence(pieces);
  }

  @Test
  void aPieceThatNobodyReachesIsHandedOutAgainAndZero() throws InterruptedException {
    HugeArena arena = new HugeArena(2 * MIB);
    for (int round = 0; round < 3; round++) {
      fill(arena);
      long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
      while (arena.freeBytes() < arena.capacity() && System.nanoTime() < deadline) {
        System.gc();
        Thread.sleep(10);
      }
      assertEquals(arena.capacity(), arena.freeBytes());
    }
  }

  private static void fill(HugeArena arena) {
    ByteBuffer piece = arena.allocate(2 * MIB);
    for (int at = 0; at < piece.capacity(); at += 512) {
      assertEquals(0, piece.get(at));
      piece.put(at, (byte) 1);
    }
    assertEquals(0, arena.freeBytes());
    java.lang.ref.Reference.reachabilityFence(piece);
  }

  @Test
  void theListOfFreePartsPutsNeighboursTogether() {
    FreeList list = new FreeList(100);
    assertEquals(OptionalInt.of(0), list.take(30));
    assertEquals(OptionalInt.of(30), list.take(30));
    assertEquals(OptionalInt.of(60), list.take(40));
    assertEquals(OptionalInt.empty(), list.take(1));
    list.give(0, 30);
    list.give(60, 40);
    assertEquals(OptionalInt.empty(), list.take(41));
    list.give(30, 30);
    assertEquals(100, list.bytes());
    assertEquals(OptionalInt.of(0), list.take(100));
    assertFalse(list.take(1).isPresent());
  }
}
