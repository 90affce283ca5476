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
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
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
    for (long bytes : new long[] {0, -1, -5, Long.MIN_VALUE, Integer.MAX_VALUE, 1L << 31, 1L << 40, Long.MAX_VALUE}) {
      assertThrows(IllegalArgumentException.class, () -> new HugeArena(bytes), () -> bytes + " bytes");
    }
    for (int count : new int[] {0, -1, Integer.MIN_VALUE}) {
      assertThrows(IllegalArgumentException.class, () -> HugePages.allocateLongs(count));
      assertThrows(IllegalArgumentException.class, () -> HugePages.allocateInts(count));
      assertThrows(IllegalArgumentException.class, () -> HugePages.allocateDoubles(count));
      assertThrows(IllegalArgumentException.class, () -> HugePages.allocateFloats(count));
    }
    HugeArena arena = new HugeArena(1);
    for (int bytes : new int[] {0, -1, Integer.MIN_VALUE}) {
      assertThrows(IllegalArgumentException.class, () -> arena.allocate(bytes));
    }
    // What was refused took nothing.
    assertEquals(2 * MIB, arena.freeBytes());
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

  /** Bytes of all mappings that were advised on. */
  private static long advisedBytes() throws IOException {
    long bytes = 0;
    long size = 0;
    for (String line : Files.readAllLines(Path.of("/proc/self/smaps"))) {
      if (line.startsWith("Size:")) {
        size = Long.parseLong(line.split("\\s+")[1]) * 1024;
      } else if (line.startsWith("VmFlags:") && line.contains(" hg")) {
        bytes += size;
      }
    }
    return bytes;
  }

  @Test
  void aViewKeepsTheMemoryAndNothingElseDoes() throws IOException, InterruptedException {
    assumeHugePages();
    LongBuffer[] view = {HugePages.allocateLongs(32 * MIB).slice(1_000, 10)};
    view[0].put(3, 42);
    long with = advisedBytes();
    assertTrue(with >= 256L * MIB, () -> with + " bytes");
    for (int round = 0; round < 3; round++) {
      System.gc();
    }
    assertEquals(42, view[0].get(3));
    assertThrows(IndexOutOfBoundsException.class, () -> view[0].get(10));
    assertThrows(IndexOutOfBoundsException.class, () -> view[0].put(-1, 1));
    view[0] = null;
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (advisedBytes() > with - 128L * MIB) {
      assertTrue(System.nanoTime() < deadline, "the memory was not given back");
      System.gc();
      Thread.sleep(10);
    }
  }

  @Test
  void aPieceOutlivesItsArena() {
    ByteBuffer piece = new HugeArena(MIB).allocate(1_000);
    piece.put(999, (byte) 5);
    for (int round = 0; round < 3; round++) {
      System.gc();
    }
    assertEquals(5, piece.get(999));
    assertThrows(IndexOutOfBoundsException.class, () -> piece.get(1_000));
  }

  @Test
  void threadsThatAllocateAtTheSameTimeGetPiecesOfTheirOwn() {
    HugeArena arena = new HugeArena(8 * MIB);
    List<ByteBuffer> pieces = IntStream.range(0, 2_000).parallel().mapToObj(number -> {
      ByteBuffer piece = arena.allocate(1_000);
      for (int at = 0; at < 1_000; at += 4) {
        piece.putInt(at, number);
      }
      return piece;
    }).toList();
    for (int number = 0; number < pieces.size(); number++) {
      for (int at = 0; at < 1_000; at += 4) {
        assertEquals(number, pieces.get(number).getInt(at));
      }
    }
  }

  /** As in docs/guide/spark.md. */
  @Test
  void theExampleOfTheDocumentWorks() {
    if (!HugePages.problem().isEmpty()) {
      System.err.println("small pages then: " + HugePages.problem());
    }
    LongBuffer ranks = HugePages.allocateLongs(10_000_000);
    for (int vertex = 0; vertex < ranks.capacity(); vertex++) {
      ranks.put(vertex, 1);
    }
    System.out.println(HugePages.hugeBytes(ranks) + " of " + 8L * ranks.capacity() + " bytes are on huge pages");

    HugeArena arena = new HugeArena(64 << 20);
    ByteBuffer key = arena.allocate(100).put("a key of many".getBytes(StandardCharsets.UTF_8)).flip();
    assertEquals(13, key.remaining());
    assertEquals(10_000_000, ranks.capacity());
    assertEquals((64 << 20) - 128, arena.freeBytes());
  }

  @Test
  void whatIsGivenBackTwiceIsRefused() {
    FreeList list = new FreeList(100);
    assertEquals(OptionalInt.of(0), list.take(60));
    list.give(10, 20);
    for (int[] twice : new int[][] {{10, 20}, {0, 11}, {29, 5}, {15, 5}, {0, 60}, {90, 10}}) {
      assertThrows(IllegalStateException.class, () -> list.give(twice[0], twice[1]));
    }
    list.give(0, 10);
    list.give(30, 30);
    assertEquals(100, list.bytes());
    assertEquals(OptionalInt.of(0), list.take(100));
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
