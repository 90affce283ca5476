package io.hiroma.spark;

import java.lang.reflect.Field;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.memory.MemoryStore;

/**
 * The chunks in which Spark stores serialised data. They have 1 MiB ({@code spark.storage.unrollMemoryThreshold}), and with the header of an
 * array each is just too large for a region of 1 MiB, and takes two; in regions of 2 MiB it leaves half of one unused. A chunk that fits
 * fills its region, so that the same cached data takes half of the heap.
 */
final class Chunks {
  /** The header of an array, rounded up to what objects are aligned to at most by default. */
  private static final long HEADER_BYTES = 32;
  private static final long SPARK_BYTES = 1L << 20;
  /** In larger regions a chunk of Spark's is no humongous object, and wastes nothing. */
  private static final long REGION_BYTES_MAX = 2L << 20;
  static final String KEY = "spark.storage.unrollMemoryThreshold";
  private static final String FIELD = "unrollMemoryThreshold";

  private Chunks() {}

  /** Bytes of a chunk that fills a region of {@code regionBytes}; Spark's own where that is no use. */
  static long fitting(long regionBytes) {
    return regionBytes > 0 && regionBytes <= REGION_BYTES_MAX ? regionBytes - HEADER_BYTES : SPARK_BYTES;
  }

  /**
   * Has this executor store what comes from now on in chunks of {@code bytes}. The executor knows its regions; the configuration, which is
   * made before it starts, does not.
   *
   * @return the size so far; negative if nothing is stored here
   * @throws ReflectiveOperationException if this Spark keeps the size elsewhere
   */
  static long use(long bytes) throws ReflectiveOperationException {
    SparkEnv env = SparkEnv.get();
    if (env == null || env.blockManager() == null) {
      return -1;
    }
    Field field = MemoryStore.class.getDeclaredField(FIELD);
    field.setAccessible(true);
    long before = field.getLong(env.blockManager().memoryStore());
    field.setLong(env.blockManager().memoryStore(), bytes);
    return before;
  }
}
