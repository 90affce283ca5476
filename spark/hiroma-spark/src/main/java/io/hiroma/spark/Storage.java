package io.hiroma.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.memory.MemoryManager;

/** Spark's storage memory in this executor, in bytes. */
final class Storage {
  private Storage() {}

  /** What is stored: blocks of RDDs and tables, broadcasts, and what is being stored. */
  static long usedBytes() {
    MemoryManager manager = manager();
    return manager == null ? 0 : manager.storageMemoryUsed();
  }

  private static MemoryManager manager() {
    SparkEnv env = SparkEnv.get();
    return env == null ? null : env.memoryManager();
  }
}
