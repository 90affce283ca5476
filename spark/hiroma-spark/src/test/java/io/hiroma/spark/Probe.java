package io.hiroma.spark;

import io.hiroma.jvm.JavaHeap;
import java.io.IOException;
import java.io.Serializable;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.memory.MemoryStore;
import org.apache.spark.storage.memory.SerializedMemoryEntry;

/**
 * What an executor's cached data lies on, found without the plugin's own way: by the address of each chunk of serialised data.
 *
 * @param chunkBytes bytes of all chunks, and how many of them are on huge pages
 * @param youngHugeBytes bytes of young regions that are on huge pages; in the same way of old, humongous and free ones
 * @param hugeBytes everything of the process on huge pages
 * @param advisedBytes bytes of mappings that the kernel was advised to have on huge pages
 * @param residentBytes memory of the process
 * @param pid the process
 * @param executor the executor's name
 * @param thp the kernel's word for transparent huge pages
 * @param usage what the plugin says
 */
record Probe(long chunkBytes, long chunkHugeBytes, long youngHugeBytes, long oldHugeBytes, long humongousHugeBytes, long freeHugeBytes,
    long hugeBytes, long advisedBytes, long residentBytes, long pid, String executor, String thp, Seen usage) implements Serializable {

  /** The part of a {@link Usage} that tests look at. */
  record Seen(String policy, long cachedBytes, long cachedHugeBytes, long otherHugeBytes) implements Serializable {}

  /** Arrays of numbers, {@code bytes} in each of {@code partitions}. */
  static JavaRDD<long[]> numbers(JavaSparkContext context, int partitions, int bytes) {
    return context.parallelize(IntStream.range(0, partitions).boxed().toList(), partitions)
        .flatMap(part -> IntStream.range(0, bytes / 8192).mapToObj(piece -> {
          long[] values = new long[1024];
          java.util.Arrays.setAll(values, place -> (long) part * piece + place);
          return values;
        }).iterator());
  }

  static Probe here() throws ReflectiveOperationException, IOException {
    MemoryStore store = SparkEnv.get().blockManager().memoryStore();
    long bytes = 0;
    long huge = 0;
    Field entries = MemoryStore.class.getDeclaredField("entries");
    entries.setAccessible(true);
    List<Object> found;
    Map<?, ?> shared = (Map<?, ?>) entries.get(store);
    // As Spark guards it.
    synchronized (shared) {
      found = List.copyOf(shared.values());
    }
    for (Object entry : found) {
      // Broadcast variables are serialised as well; they are stored in the same way.
      if (entry instanceof SerializedMemoryEntry<?> serialized) {
        for (ByteBuffer chunk : serialized.buffer().getChunks()) {
          bytes += chunk.capacity();
          huge += chunk.hasArray() ? hugeBytes(chunk.array()) : hugeBytes(chunk);
        }
      }
    }
    Map<Region.Kind, Long> kinds = new EnumMap<>(Region.Kind.class);
    if (Jvm.collector() != Jvm.Collector.OTHER) {
      Runs runs = runs();
      new Heap(Native.heap()).regions().forEach(region -> kinds.merge(region.kind(), runs.within(region.bottom(), region.end()), Long::sum));
    }
    List<Smaps.Mapping> mappings = Smaps.parse(Files.readAllLines(Path.of("/proc/self/smaps"), java.nio.charset.StandardCharsets.ISO_8859_1));
    long all = mappings.stream().mapToLong(Smaps.Mapping::huge).sum();
    long advised = mappings.stream().filter(mapping -> mapping.flags().contains("hg")).mapToLong(mapping -> mapping.end() - mapping.start()).sum();
    String words = Files.readString(Path.of("/sys/kernel/mm/transparent_hugepage/enabled"));
    Usage usage = Usage.here();
    Seen seen = new Seen(usage.policy(), usage.cachedBytes(), usage.cachedHugeBytes(), usage.otherHugeBytes());
    return new Probe(bytes, huge, kinds.getOrDefault(Region.Kind.YOUNG, 0L), kinds.getOrDefault(Region.Kind.OLD, 0L),
        kinds.getOrDefault(Region.Kind.HUMONGOUS, 0L), kinds.getOrDefault(Region.Kind.FREE, 0L), all, advised,
        mappings.stream().mapToLong(Smaps.Mapping::resident).sum(), ProcessHandle.current().pid(), SparkEnv.get().executorId(),
        words.substring(words.indexOf('[') + 1, words.indexOf(']')), seen);
  }

  /** Bytes of a direct buffer on huge pages. */
  private static long hugeBytes(ByteBuffer chunk) {
    long start = Native.bufferAddress(chunk);
    return Runs.of(Native.hugeRuns(start, start + chunk.capacity())).within(start, start + chunk.capacity());
  }

  private static Runs runs() {
    JavaHeap heap = Native.heap();
    return Runs.of(Native.hugeRuns(heap.base(), heap.base() + heap.length()));
  }

  /** Bytes of an array on huge pages; 0 with a collector whose heap is not known. */
  private static long hugeBytes(byte[] array) throws ReflectiveOperationException {
    if (Jvm.collector() == Jvm.Collector.OTHER) {
      return 0;
    }
    // By reflection, since the compiler warns of the class.
    Class<?> type = Class.forName("sun.misc.Unsafe");
    Field field = type.getDeclaredField("theUnsafe");
    field.setAccessible(true);
    Object[] holder = {array};
    long first = type.getField("ARRAY_OBJECT_BASE_OFFSET").getInt(null);
    Object read = type.getMethod("getInt", Object.class, long.class).invoke(field.get(null), holder, first);
    long reference = Integer.toUnsignedLong((Integer) read);
    Heap heap = new Heap(Native.heap());
    // Small heaps have references of 32 bits that are addresses; larger ones count in words.
    long address = List.of(reference, reference << 3).stream().filter(heap::contains).findFirst().orElseThrow();
    return runs().within(address, address + array.length);
  }
}
