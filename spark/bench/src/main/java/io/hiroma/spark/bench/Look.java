package io.hiroma.spark.bench;

import java.io.IOException;
import java.io.Serializable;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.LongPredicate;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryStore;
import org.apache.spark.storage.memory.SerializedMemoryEntry;
import org.apache.spark.unsafe.Platform;

/**
 * An executor, seen from inside, without the plugin's help: where each piece of its cached data lies.
 *
 * @param pid its process
 * @param policy the policy in force; "" without the plugin
 * @param gcMillis time that its collectors have taken so far
 * @param runs first address and length of each run of cached data: arrays of numbers, without headers, and memory outside the heap
 */
record Look(long pid, String policy, long gcMillis, long[] runs) implements Serializable {
  private static final long HEADER = Platform.LONG_ARRAY_OFFSET;

  static Look here() throws ReflectiveOperationException, IOException {
    long gcMillis = ManagementFactory.getGarbageCollectorMXBeans().stream().mapToLong(GarbageCollectorMXBean::getCollectionTime).sum();
    return new Look(ProcessHandle.current().pid(), policyInForce(), gcMillis, cachedRuns());
  }

  private static String policyInForce() throws ReflectiveOperationException {
    Class<?> usages;
    try {
      usages = Class.forName("io.hiroma.spark.Usage", true, Thread.currentThread().getContextClassLoader());
    } catch (ClassNotFoundException noPlugin) {
      return "";
    }
    Object usage = usages.getMethod("here").invoke(null);
    return usage == null ? "" : (String) usages.getMethod("policy").invoke(usage);
  }

  private static long[] cachedRuns() throws ReflectiveOperationException, IOException {
    TreeMap<Long, Long> lengths = new TreeMap<>();
    MemoryStore store = SparkEnv.get().blockManager().memoryStore();
    Field entries = MemoryStore.class.getDeclaredField("entries");
    entries.setAccessible(true);
    List<Object> arrays = new ArrayList<>();
    for (Map.Entry<?, ?> entry : ((Map<?, ?>) entries.get(store)).entrySet()) {
      // Broadcast variables are stored in the same way.
      if (!((BlockId) entry.getKey()).isRDD()) {
        continue;
      }
      if (entry.getValue() instanceof SerializedMemoryEntry<?> serialized) {
        for (ByteBuffer chunk : serialized.buffer().getChunks()) {
          if (chunk.hasArray()) {
            arrays.add(chunk.array());
          } else {
            lengths.put(outside(chunk), (long) chunk.capacity());
          }
        }
      } else if (entry.getValue() instanceof DeserializedMemoryEntry<?> kept && kept.value() instanceof Object[] values) {
        for (Object value : values) {
          collect(value, arrays);
        }
      }
    }
    Addresses addresses = new Addresses();
    for (Object array : arrays) {
      lengths.put(addresses.of(array) + HEADER, length(array));
    }
    return lengths.entrySet().stream().flatMapToLong(run -> java.util.stream.LongStream.of(run.getKey(), run.getValue())).toArray();
  }

  /** Arrays of {@code value}: itself, or the columns of a batch of a DataFrame (a private class of Spark's, hence by reflection). */
  private static void collect(Object value, List<Object> arrays) throws ReflectiveOperationException {
    if (value != null && value.getClass().isArray()) {
      arrays.add(value);
    } else if (value != null && value.getClass().getMethod("buffers").invoke(value) instanceof byte[][] columns) {
      arrays.addAll(List.of(columns));
    }
  }

  private static long outside(ByteBuffer buffer) throws ReflectiveOperationException {
    return (Long) Class.forName("sun.nio.ch.DirectBuffer").getMethod("address").invoke(buffer);
  }

  private static long length(Object array) {
    if (array instanceof byte[] bytes) {
      return bytes.length;
    }
    return java.lang.reflect.Array.getLength(array) * (array instanceof int[] ? (long) Integer.BYTES : Long.BYTES);
  }

  /** Turns compressed references into addresses; what one unit of them is, is found out with an array of known content. */
  private static final class Addresses {
    private static final long KNOWN = 0x6869_726f_6d61_2b7dL;

    private final int shift;

    Addresses() throws IOException {
      LongPredicate mapped = mapped();
      long[] probe = {KNOWN};
      for (int candidate : new int[] {0, 3}) {
        long at = reference(probe) << candidate;
        if (mapped.test(at) && Platform.getLong(null, at + HEADER) == KNOWN) {
          shift = candidate;
          return;
        }
      }
      throw new IllegalStateException("where this JVM's objects lie cannot be found: references are not compressed as expected");
    }

    long of(Object array) {
      return reference(array) << shift;
    }

    /** The reference as the JVM stores it. */
    private static long reference(Object object) {
      return Integer.toUnsignedLong(Platform.getInt(new Object[] {object}, Platform.INT_ARRAY_OFFSET));
    }

    private static LongPredicate mapped() throws IOException {
      TreeMap<Long, Long> ends = new TreeMap<>();
      for (String line : Files.readAllLines(Path.of("/proc/self/maps"), StandardCharsets.ISO_8859_1)) {
        String[] words = line.split("[- ]");
        if (words[2].startsWith("rw")) {
          ends.put(Long.parseUnsignedLong(words[0], 16), Long.parseUnsignedLong(words[1], 16));
        }
      }
      return at -> {
        Map.Entry<Long, Long> mapping = ends.floorEntry(at);
        return mapping != null && at + HEADER + Long.BYTES <= mapping.getValue();
      };
    }
  }
}
