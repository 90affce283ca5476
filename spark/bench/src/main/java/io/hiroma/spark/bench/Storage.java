package io.hiroma.spark.bench;

import org.apache.spark.storage.StorageLevel;

/** How a job's data is cached. */
enum Storage {
  DESERIALISED, SERIALISED, OFF_HEAP, DATAFRAME;

  static Storage of(String word) {
    return valueOf(word.toUpperCase(java.util.Locale.ROOT).replace('-', '_'));
  }

  StorageLevel level() {
    return switch (this) {
      case SERIALISED -> StorageLevel.MEMORY_ONLY_SER();
      case OFF_HEAP -> StorageLevel.OFF_HEAP();
      case DESERIALISED, DATAFRAME -> StorageLevel.MEMORY_ONLY();
    };
  }
}
