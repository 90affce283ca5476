package io.hiroma.spark;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.MemoryStore;
import org.apache.spark.storage.memory.SerializedMemoryEntry;

/**
 * Where the blocks are that this executor has cached. Serialised blocks are looked up chunk by chunk, on the heap and off it; deserialised
 * ones object by object if their elements are large (the batches of a DataFrame's cache, the pickles of Python), and by sample otherwise.
 */
final class CachedData {
  /** Arrays of this size and more count by their address and length, where all of their block are looked at. */
  private static final long LARGE_BYTES = 4 << 10;
  /** Of elements of this size and more, on average, all are looked at; of smaller ones a sample is. */
  private static final long LARGE_ELEMENT_BYTES = 4 << 10;
  /** Samples for each huge page that a block fills, and for a block at least. */
  private static final int SAMPLES = 32;
  private static final int SAMPLES_MIN = 64;
  /** Objects that one look visits at most: some milliseconds. The next one goes on. */
  private static final int VISITS_MAX = 20_000;
  /** Objects that one element is followed through at most. */
  private static final int ELEMENT_VISITS_MAX = 256;
  /** What an object that is no array has, and the header of one that is: about. */
  private static final long OBJECT_BYTES = 24;
  private static final long ARRAY_HEADER_BYTES = 16;
  private static final ClassValue<List<Field>> FIELDS = new ClassValue<>() {
    @Override
    protected List<Field> computeValue(Class<?> type) {
      return fields(type);
    }
  };

  /**
   * What a look saw.
   *
   * @param pages of all blocks, or if {@code complete} is false of those that there was time for so far
   * @param bytes what Spark says that the blocks have
   */
  record Look(CachedPages pages, long bytes, boolean complete) {}

  /** How many blocks of RDDs and tables there are, and the bytes of all together, as Spark counts them. */
  record Blocks(int count, long bytes) {}

  private final Heap heap;
  /** Blocks of a look that has not come to its end, and what was seen of others before them. */
  private final Deque<MemoryEntry<?>> open = new ArrayDeque<>();
  private CachedPages seen = new CachedPages();
  private int visits;

  /**
   * The blocks of this executor.
   *
   * @param heap null with a collector whose objects cannot be found: then only blocks off the heap are
   */
  CachedData(Heap heap) {
    this.heap = heap;
  }

  /** What is stored now, without looking where it lies. */
  static Blocks blocks() throws ReflectiveOperationException {
    List<MemoryEntry<?>> entries = entries();
    return new Blocks(entries.size(), entries.stream().mapToLong(MemoryEntry::size).sum());
  }

  /** Looks on where the last look ended, or anew if that saw everything. */
  synchronized Look look() throws ReflectiveOperationException {
    List<MemoryEntry<?>> entries = entries();
    if (open.isEmpty()) {
      open.addAll(entries);
      seen = new CachedPages();
    }
    visits = 0;
    while (!open.isEmpty() && visits < VISITS_MAX) {
      MemoryEntry<?> entry = open.remove();
      if (entry instanceof SerializedMemoryEntry<?> serialized) {
        for (ByteBuffer chunk : serialized.buffer().getChunks()) {
          add(chunk, seen);
        }
      } else if (heap != null && entry instanceof DeserializedMemoryEntry<?> deserialized) {
        add(deserialized, seen);
      }
    }
    // The next look, of another thread perhaps, goes on with what is not complete.
    CachedPages pages = open.isEmpty() ? seen : seen.copy();
    return new Look(pages, entries.stream().mapToLong(MemoryEntry::size).sum(), open.isEmpty());
  }

  /**
   * The blocks of RDDs and tables. Broadcasts and what tasks exchange lie in the same store, but nobody asked for them to be kept.
   */
  private static List<MemoryEntry<?>> entries() throws ReflectiveOperationException {
    LinkedHashMap<?, ?> entries = map();
    synchronized (entries) {
      List<MemoryEntry<?>> found = new ArrayList<>(entries.size());
      entries.forEach((block, entry) -> {
        if (((BlockId) block).isRDD()) {
          found.add((MemoryEntry<?>) entry);
        }
      });
      return found;
    }
  }

  /** What the executor's memory store holds, to be looked at as Spark guards it: synchronised. */
  private static LinkedHashMap<?, ?> map() throws ReflectiveOperationException {
    SparkEnv env = SparkEnv.get();
    if (env == null || env.blockManager() == null) {
      return new LinkedHashMap<>();
    }
    Field field = MemoryStore.class.getDeclaredField("entries");
    field.setAccessible(true);
    return (LinkedHashMap<?, ?>) field.get(env.blockManager().memoryStore());
  }

  private void add(ByteBuffer chunk, CachedPages pages) {
    long start = 0;
    if (chunk.isDirect()) {
      start = Native.bufferAddress(chunk);
    } else if (heap != null && chunk.hasArray()) {
      start = addresses(chunk.array())[0];
    }
    if (start != 0) {
      pages.add(start, start + chunk.capacity());
    }
  }

  /** Where each of {@code objects} is at this moment. */
  private long[] addresses(Object... objects) {
    long[] addresses = Native.addresses(objects);
    for (long address : addresses) {
      if (address != 0 && !heap.contains(address)) {
        throw new IllegalStateException("this JVM's heap is not where it says: an object at 0x" + Long.toHexString(address));
      }
    }
    return addresses;
  }

  private void add(DeserializedMemoryEntry<?> entry, CachedPages pages) {
    Object values = entry.value();
    if (!values.getClass().isArray()) {
      return;
    }
    int count = Array.getLength(values);
    long wanted = Math.max(SAMPLES_MIN, entry.size() / CachedPages.HUGE_PAGE * SAMPLES);
    boolean all = count == 0 || entry.size() / count >= LARGE_ELEMENT_BYTES;
    int step = all ? 1 : (int) Math.max(1, count / wanted);
    List<Object> found = new ArrayList<>(List.of(values));
    if (!values.getClass().getComponentType().isPrimitive()) {
      for (long at = 0; at < count; at += step) {
        follow(Array.get(values, (int) at), all ? entry.size() / count : Long.MAX_VALUE, found);
      }
    }
    place(found, step, entry.size(), pages);
  }

  /** Adds {@code found}: the array of a block's elements, and what every {@code step}-th of them is made of. */
  private void place(List<Object> found, int step, long entryBytes, CachedPages pages) {
    long[] where = addresses(found.toArray());
    long exact = 0;
    long sampled = 0;
    for (int number = 0; number < where.length; number++) {
      long bytes = bytes(found.get(number));
      if (exact(bytes, number, step)) {
        pages.add(where[number], where[number] + bytes);
        exact += bytes;
      } else {
        sampled += bytes;
      }
    }
    // A sample stands for the rest of the block, whatever its own objects have.
    double scale = sampled == 0 ? 0 : (double) Math.max(0, entryBytes - exact) / sampled;
    for (int number = 0; number < where.length; number++) {
      long bytes = bytes(found.get(number));
      if (!exact(bytes, number, step) && where[number] != 0) {
        pages.addAround(where[number], Math.round(bytes * scale));
      }
    }
  }

  /** The array of the elements comes first, and is there once whatever the step is. */
  private static boolean exact(long bytes, int number, int step) {
    return bytes >= LARGE_BYTES && (step == 1 || number == 0);
  }

  /** Adds the objects that {@code element} is made of, until nearly {@code enough} bytes of it are found. */
  private void follow(Object element, long enough, List<Object> found) {
    long bytes = 0;
    Deque<Object> ahead = new ArrayDeque<>();
    if (element != null) {
      ahead.add(element);
    }
    for (int number = 0; !ahead.isEmpty() && number < ELEMENT_VISITS_MAX && bytes < enough - enough / 32; number++) {
      Object object = ahead.remove();
      visits++;
      found.add(object);
      bytes += bytes(object);
      if (object instanceof Object[] array) {
        Stream.of(array).filter(next -> next != null && worth(next)).limit(ELEMENT_VISITS_MAX).forEach(ahead::add);
      } else if (!object.getClass().isArray()) {
        for (Field field : FIELDS.get(object.getClass())) {
          Object next = value(field, object);
          if (next != null && worth(next)) {
            ahead.add(next);
          }
        }
      }
    }
  }

  /** Whether an object belongs to the data; classes and their like belong to the program. */
  private static boolean worth(Object object) {
    return !(object instanceof Class<?> || object instanceof Enum<?> || object instanceof ClassLoader || object instanceof Thread);
  }

  private static Object value(Field field, Object object) {
    try {
      return field.get(object);
    } catch (IllegalAccessException notOurs) {
      return null;
    }
  }

  private static List<Field> fields(Class<?> type) {
    List<Field> found = new ArrayList<>();
    for (Class<?> at = type; at != null; at = at.getSuperclass()) {
      for (Field field : at.getDeclaredFields()) {
        try {
          if (!Modifier.isStatic(field.getModifiers()) && !field.getType().isPrimitive() && field.trySetAccessible()) {
            found.add(field);
          }
        } catch (SecurityException hidden) {
          // What is closed stays unseen.
        }
      }
    }
    return found;
  }

  /** Bytes of an array, and about those of another object. */
  private static long bytes(Object object) {
    if (!object.getClass().isArray()) {
      return OBJECT_BYTES;
    }
    long each = switch (object.getClass().getComponentType().getName()) {
      case "byte", "boolean" -> 1;
      case "short", "char" -> Short.BYTES;
      case "long", "double" -> Long.BYTES;
      // References have four bytes in heaps of up to 32 GiB.
      default -> Integer.BYTES;
    };
    return ARRAY_HEADER_BYTES + each * Array.getLength(object);
  }
}
