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
 * Where the blocks are that this executor has cached. Serialised blocks are looked up chunk by chunk, on the heap and off it; of deserialised
 * ones the large arrays are (the columns of a DataFrame's cache are such), and of small objects a sample stands for the rest.
 */
final class CachedData {
  /** Objects of this size and more count by their address and length, smaller ones by sample. */
  private static final long LARGE = 64 << 10;
  /** Samples of deserialised data for each huge page that it fills. */
  private static final int SAMPLES = 8;
  /** Objects that one look visits at most: some milliseconds. */
  private static final int VISITS_MAX = 20_000;
  /** Objects that one element is followed through at most. */
  private static final int ELEMENT_VISITS_MAX = 256;
  private static final ClassValue<List<Field>> FIELDS = new ClassValue<>() {
    @Override
    protected List<Field> computeValue(Class<?> type) {
      return fields(type);
    }
  };

  private final boolean heapKnown;
  /** Blocks that the last look had no time for come first in the next one. */
  private int skipped;

  CachedData(boolean heapKnown) {
    this.heapKnown = heapKnown;
  }

  /** Looks now. */
  CachedPages look() throws ReflectiveOperationException {
    CachedPages pages = new CachedPages();
    List<DeserializedMemoryEntry<?>> objects = new ArrayList<>();
    for (MemoryEntry<?> entry : entries()) {
      if (entry instanceof SerializedMemoryEntry<?> serialized) {
        for (ByteBuffer chunk : serialized.buffer().getChunks()) {
          add(chunk, pages);
        }
      } else if (heapKnown && entry instanceof DeserializedMemoryEntry<?> deserialized) {
        objects.add(deserialized);
      }
    }
    int visits = 0;
    int begin = skipped;
    for (int number = 0; number < objects.size(); number++) {
      int at = (begin + number) % objects.size();
      if (visits >= VISITS_MAX) {
        skipped = at;
        break;
      }
      visits += sample(objects.get(at), pages);
    }
    return pages;
  }

  /** How many blocks of any kind there are; cheap, and as exact as it can be without stopping others. */
  static int stored() throws ReflectiveOperationException {
    return map().size();
  }

  /** How many deserialised blocks of RDDs there are; they are young when they are stored. */
  static int blocks() throws ReflectiveOperationException {
    LinkedHashMap<?, ?> entries = map();
    int found = 0;
    synchronized (entries) {
      for (Map.Entry<?, ?> entry : entries.entrySet()) {
        found += entry.getValue() instanceof DeserializedMemoryEntry<?> && ((BlockId) entry.getKey()).isRDD() ? 1 : 0;
      }
    }
    return found;
  }

  private static List<MemoryEntry<?>> entries() throws ReflectiveOperationException {
    LinkedHashMap<?, ?> entries = map();
    synchronized (entries) {
      List<MemoryEntry<?>> found = new ArrayList<>(entries.size());
      entries.values().forEach(entry -> found.add((MemoryEntry<?>) entry));
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
    } else if (heapKnown && chunk.hasArray()) {
      start = Native.addresses(new Object[] {chunk.array()})[0];
    }
    if (start != 0) {
      pages.add(start, start + chunk.capacity());
    }
  }

  /** How many objects were visited. */
  private static int sample(DeserializedMemoryEntry<?> entry, CachedPages pages) {
    Object values = entry.value();
    if (!values.getClass().isArray()) {
      return 0;
    }
    int count = Array.getLength(values);
    long wanted = Math.max(64, entry.size() / CachedPages.HUGE_PAGE * SAMPLES);
    int step = (int) Math.max(1, count / wanted);
    List<Object> large = new ArrayList<>(List.of(values));
    List<Object> small = new ArrayList<>();
    int visits = 0;
    if (!values.getClass().getComponentType().isPrimitive()) {
      for (long at = 0; at < count && visits < VISITS_MAX; at += step) {
        visits += follow(Array.get(values, (int) at), large, small);
      }
    }
    long[] where = Native.addresses(large.toArray());
    long exact = 0;
    for (int number = 0; number < where.length; number++) {
      long bytes = bytes(large.get(number));
      pages.add(where[number], where[number] + bytes);
      exact += bytes;
    }
    // Of what was not sampled each large array stands for `step` of its kind; together they are not more than the block.
    long rest = Math.max(0, entry.size() - exact * (step > 1 ? step : 1));
    for (long address : Native.addresses(small.toArray())) {
      pages.addAround(address, rest / small.size());
    }
    return visits;
  }

  /** Sorts the objects that {@code element} is made of into large arrays and others; how many were visited. */
  private static int follow(Object element, List<Object> large, List<Object> small) {
    Deque<Object> open = new ArrayDeque<>();
    if (element != null) {
      open.add(element);
    }
    int visits = 0;
    while (!open.isEmpty() && visits < ELEMENT_VISITS_MAX) {
      Object object = open.remove();
      visits++;
      if (bytes(object) >= LARGE) {
        large.add(object);
      } else {
        small.add(object);
      }
      if (object instanceof Object[] array) {
        Stream.of(array).filter(next -> next != null && worth(next)).forEach(open::add);
      } else if (!object.getClass().isArray()) {
        for (Field field : FIELDS.get(object.getClass())) {
          Object next = value(field, object);
          if (next != null && worth(next)) {
            open.add(next);
          }
        }
      }
    }
    return visits;
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

  /** Bytes of an array without its header; of other objects it only matters that they are small. */
  private static long bytes(Object object) {
    if (!object.getClass().isArray()) {
      return 0;
    }
    long each = switch (object.getClass().getComponentType().getName()) {
      case "byte", "boolean" -> 1;
      case "short", "char" -> Short.BYTES;
      case "long", "double" -> Long.BYTES;
      // References have four bytes in heaps of up to 32 GiB.
      default -> Integer.BYTES;
    };
    return each * Array.getLength(object);
  }
}
