package io.hiroma.spark;

import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;

/**
 * Has cached objects moved out of young regions, where they are left alone, into old ones, which are born huge: by young collections, those
 * that begin a concurrent cycle of G1 ({@code System.gc()} with {@code -XX:+ExplicitGCInvokesConcurrent}; never a full collection). The first
 * makes survivors of them, and the second, with {@code -XX:MaxTenuringThreshold=1}, old objects.
 */
final class Promotion {
  /** Less than this in young regions is left to the next collection that comes by itself. */
  static final long LEAST_BYTES = 8L << 20;
  /** Less than this share of all that is cached, too. */
  private static final long LEAST_SHARE = 50;
  /** So many times as long as the last collections took, with their concurrent parts, there are none. */
  private static final long PAUSE = 4;

  private int blocks;
  private boolean wanted;
  private volatile boolean running;
  private volatile long tookNanos;
  private volatile long endedNanos;

  /** Whether it is worth looking how much cached data is young: {@code found} blocks are stored now. */
  boolean due(int found, long nowNanos) {
    wanted |= found > blocks;
    blocks = found;
    return wanted && !running && (tookNanos == 0 || nowNanos - endedNanos >= PAUSE * tookNanos);
  }

  /** Whether collections are worth their time if {@code young} of {@code all} cached bytes are in young regions; it is asked once for each block. */
  boolean worthwhile(long young, long all) {
    wanted = false;
    return young >= LEAST_BYTES && young >= all / LEAST_SHARE;
  }

  /** Begins to collect; in a thread of its own, since it lasts as long as the concurrent cycles. */
  void begin() {
    running = true;
    Thread thread = new Thread(this::collect, "hiroma-promotion");
    thread.setDaemon(true);
    thread.start();
  }

  private void collect() {
    long started = System.nanoTime();
    try {
      System.gc();
      if (survivorBytes() >= LEAST_BYTES) {
        System.gc();
      }
    } finally {
      endedNanos = System.nanoTime();
      tookNanos = Math.max(1, endedNanos - started);
      running = false;
    }
  }

  private static long survivorBytes() {
    return ManagementFactory.getMemoryPoolMXBeans().stream().filter(pool -> pool.getName().equals("G1 Survivor Space"))
        .map(MemoryPoolMXBean::getUsage).mapToLong(usage -> usage == null ? 0 : usage.getUsed()).sum();
  }
}
