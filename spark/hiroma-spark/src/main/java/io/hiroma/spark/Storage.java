package io.hiroma.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.memory.MemoryManager;

/** Spark's storage memory in this executor, in bytes. */
final class Storage {
  private Storage() {}

  /** What can be cached on the heap at most. */
  static long maxBytes() {
    MemoryManager manager = manager();
    return manager == null ? 0 : manager.maxOnHeapStorageMemory();
  }

  /** What is cached. */
  static long usedBytes() {
    MemoryManager manager = manager();
    return manager == null ? 0 : manager.storageMemoryUsed();
  }

  /** What of it is on the heap. */
  static long usedOnHeapBytes() {
    MemoryManager manager = manager();
    return manager == null ? 0 : manager.onHeapStorageMemoryUsed();
  }

  private static MemoryManager manager() {
    SparkEnv env = SparkEnv.get();
    return env == null ? null : env.memoryManager();
  }
}
