package io.hiroma.spark;

import java.util.Optional;

/** Which memory of an executor is put on huge pages: the four ways that the paper compares (section 6), and the one that chooses. */
public enum Policy {
  /** None. */
  OFF("off"),
  /** All of the JVM, as with {@code -XX:+UseTransparentHugePages}. */
  ENTIRE("entire"),
  /** Cached data, as soon as it is stored and found. */
  PART("part"),
  /** The same, if it makes the tasks of this application faster, which is measured on them. */
  AUTO("auto"),
  /** Cached data, marked for the kernel's khugepaged (the paper's earlier method). */
  PART_OLD("part-old");

  private final String word;

  Policy(String word) {
    this.word = word;
  }

  /** As it is written in {@code spark.hiroma.policy}. */
  public String word() {
    return word;
  }

  static Optional<Policy> of(String word) {
    for (Policy policy : values()) {
      if (policy.word.equalsIgnoreCase(word.trim())) {
        return Optional.of(policy);
      }
    }
    return Optional.empty();
  }
}
