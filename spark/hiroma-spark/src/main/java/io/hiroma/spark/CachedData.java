package io.hiroma.spark;

import java.lang.ref.WeakReference;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Set;
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
  /** Objects and chunks after which a look ends, within a block as well: some milliseconds. The next one goes on. */
  static final int VISITS_MAX = 20_000;
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
   * @param whole pages of all blocks, as the last look saw them that came to the end; the same as {@code pages} before there was one
   */
  record Look(CachedPages pages, long bytes, boolean complete, CachedPages whole) {}

  /** How many blocks of RDDs and tables there are, and the bytes of all together, as Spark counts them. */
  record Blocks(int count, long bytes) {}

  /** Where blocks come from. */
  interface Source {
    List<MemoryEntry<?>> entries() throws ReflectiveOperationException;
  }

  /** A block from its element number {@code from} on. Spark may drop it before its turn comes, and its memory must be free then. */
  private record Part(WeakReference<MemoryEntry<?>> entry, int from) {}

  private final Heap heap;
  private final Source source;
  /** What a look has not come to, and what was seen of other blocks before. */
  private final Deque<Part> open = new ArrayDeque<>();
  private CachedPages seen = new CachedPages();
  private CachedPages whole;
  private int visits;

  /**
   * The blocks of this executor.
   *
   * @param heap null with a collector whose objects cannot be found: then only blocks off the heap are
   */
  CachedData(Heap heap) {
    this(heap, CachedData::entries);
  }

  CachedData(Heap heap, Source source) {
    this.heap = heap;
    this.source = source;
  }

  /** What is stored now, without looking where it lies. */
  static Blocks blocks() throws ReflectiveOperationException {
    List<MemoryEntry<?>> entries = entries();
    return new Blocks(entries.size(), bytes(entries));
  }

  /** Looks on where the last look ended, or anew if that saw everything. */
  synchronized Look look() throws ReflectiveOperationException {
    List<MemoryEntry<?>> entries = source.entries();
    if (open.isEmpty()) {
      entries.forEach(entry -> open.add(new Part(new WeakReference<>(entry), 0)));
      seen = new CachedPages();
    }
    Set<MemoryEntry<?>> stored = Collections.newSetFromMap(new IdentityHashMap<>());
    stored.addAll(entries);
    visits = 0;
    while (!open.isEmpty() && visits < VISITS_MAX) {
      Part part = open.remove();
      MemoryEntry<?> entry = part.entry().get();
      if (entry != null && stored.contains(entry)) {
        add(entry, part);
      }
    }
    boolean complete = open.isEmpty();
    if (complete) {
      whole = seen;
    }
    // The next look, of another thread perhaps, goes on with what is not complete.
    CachedPages pages = complete ? seen : seen.copy();
    return new Look(pages, bytes(entries), complete, whole == null ? pages : whole);
  }

  /** What was seen so far, without a look of its own: that would take parts of a round away from those who decide by it. */
  synchronized Look latest() throws ReflectiveOperationException {
    CachedPages pages = open.isEmpty() ? seen : seen.copy();
    return new Look(pages, bytes(source.entries()), open.isEmpty(), whole == null ? pages : whole);
  }

  private static long bytes(List<MemoryEntry<?>> entries) {
    return entries.stream().mapToLong(MemoryEntry::size).sum();
  }

  private void add(MemoryEntry<?> entry, Part part) {
    if (entry instanceof SerializedMemoryEntry<?> serialized) {
      for (ByteBuffer chunk : serialized.buffer().getChunks()) {
        visits++;
        add(chunk, seen);
      }
    } else if (heap != null && entry instanceof DeserializedMemoryEntry<?> deserialized && deserialized.value().getClass().isArray()) {
      int next = add(deserialized, part.from(), seen);
      if (next > 0) {
        open.addFirst(new Part(part.entry(), next));
      }
    }
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

  /** Adds elements from number {@code from} on; the number of the first one that there was no time for, 0 if there was for all. */
  private int add(DeserializedMemoryEntry<?> entry, int from, CachedPages pages) {
    Object values = entry.value();
    int count = Array.getLength(values);
    long own = bytes(values);
    if (from == 0 && own >= LARGE_BYTES) {
      long start = addresses(values)[0];
      pages.add(start, start + own);
    }
    if (count == 0 || values.getClass().getComponentType().isPrimitive()) {
      return 0;
    }
    long wanted = Math.max(SAMPLES_MIN, entry.size() / CachedPages.HUGE_PAGE * SAMPLES);
    boolean all = entry.size() / count >= LARGE_ELEMENT_BYTES;
    int step = all ? 1 : (int) Math.max(1, count / wanted);
    List<Object> found = new ArrayList<>();
    long at = from;
    for (; at < count && visits < VISITS_MAX; at += step) {
      follow(Array.get(values, (int) at), all ? entry.size() / count : Long.MAX_VALUE, found);
    }
    double share = (double) (Math.min(at, count) - from) / count;
    place(found, step, Math.round(Math.max(0, entry.size() - own) * share), pages);
    return at < count ? (int) at : 0;
  }

  /** Adds {@code found}: what every {@code step}-th of some elements is made of, which have {@code partBytes} together. */
  private void place(List<Object> found, int step, long partBytes, CachedPages pages) {
    long[] where = addresses(found.toArray());
    long exact = 0;
    long sampled = 0;
    for (int number = 0; number < where.length; number++) {
      long bytes = bytes(found.get(number));
      if (exact(bytes, step)) {
        pages.add(where[number], where[number] + bytes);
        exact += bytes;
      } else {
        sampled += bytes;
      }
    }
    // A sample stands for the rest of the elements, whatever its own objects have.
    double scale = sampled == 0 ? 0 : (double) Math.max(0, partBytes - exact) / sampled;
    for (int number = 0; number < where.length; number++) {
      long bytes = bytes(found.get(number));
      if (!exact(bytes, step) && where[number] != 0) {
        pages.addAround(where[number], Math.round(bytes * scale));
      }
    }
  }

  private static boolean exact(long bytes, int step) {
    return bytes >= LARGE_BYTES && step == 1;
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
