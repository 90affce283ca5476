package io.hiroma.spark;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What an executor tells the driver when it asks whose turn it is; the answer is the name of a {@link Trial.Turn}.
 *
 * @param cachedBytes what it has cached
 * @param busy whether it has not made its pages huge yet, as the turn wants
 * @param spentMicros what it has spent on huge pages since it started
 * @param residentBytes its memory
 */
record Question(String executor, long cachedBytes, boolean busy, long spentMicros, long residentBytes) {
  /** Time between two questions while turns alternate; before that; and when the driver has decided. */
  static final long EVERY_MILLIS = 500;
  private static final long WAITING_MILLIS = 2_000;
  private static final long DECIDED_MILLIS = 15_000;
  private static final String ASKS = "asks";
  private static final String CACHED = "cachedBytes";
  private static final String BUSY = "busy";
  private static final String SPENT = "spentMicros";
  private static final String RESIDENT = "residentBytes";

  /** When to ask again: thousands of executors ask one driver. */
  static long againMillis(Trial.Turn turn) {
    return turn.decided() ? DECIDED_MILLIS : turn == Trial.Turn.WAIT ? WAITING_MILLIS : EVERY_MILLIS;
  }

  /** As a message of the JDK's own types, which every class loader knows. */
  LinkedHashMap<String, String> message() {
    LinkedHashMap<String, String> message = new LinkedHashMap<>();
    message.put(ASKS, executor);
    message.put(CACHED, Long.toString(cachedBytes));
    message.put(BUSY, Boolean.toString(busy));
    message.put(SPENT, Long.toString(spentMicros));
    message.put(RESIDENT, Long.toString(residentBytes));
    return message;
  }

  /** Reads a message of {@link #message}; null if it is another one. */
  static Question of(Map<?, ?> message) {
    Object executor = message.get(ASKS);
    return executor == null ? null : new Question(executor.toString(), number(message, CACHED),
        Boolean.parseBoolean(String.valueOf(message.get(BUSY))), number(message, SPENT), number(message, RESIDENT));
  }

  private static long number(Map<?, ?> message, String key) {
    return Long.parseLong(String.valueOf(message.get(key)));
  }
}
