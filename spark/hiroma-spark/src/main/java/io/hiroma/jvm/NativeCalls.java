package io.hiroma.jvm;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/**
 * What Java cannot do by itself: a few calls of the C library and of the JVM. There are two ways, {@link ForeignCalls} and {@link JniCalls},
 * which do the same; {@link Natives} chooses. For any number of threads. Internal to Hiroma.
 */
public interface NativeCalls {
  /**
   * The kinds of {@link #advise}: {@code MADV_HUGEPAGE}, {@code MADV_NOHUGEPAGE}, {@code MADV_COLLAPSE} (madvise(2)), and
   * {@code MADV_COLD} on the first page of a huge one, which the kernel takes apart for that.
   */
  int HUGE = 0;
  int SMALL = 1;
  int COLLAPSE = 2;
  int SPLIT = 3;

  /** The way, as logs and the web UI name it. */
  String way();

  /** Advises on {@code bytes} bytes from {@code address} on; 0, or the number of the error (errno(3)). Content never changes. */
  int advise(long address, long bytes, int kind);

  /** Address of a symbol that the process has loaded (dlsym(3)); 0 if there is none. */
  long symbol(String name);

  /** Maps {@code bytes} bytes of anonymous memory (mmap(2)); their address, or the negative number of the error. */
  long map(long bytes);

  /** Unmaps a part of what {@link #map} has mapped, to which nothing refers any more. */
  void unmap(long address, long bytes);

  /** {@code bytes} bytes at {@code address}, which {@link #map} has mapped, as a direct buffer. */
  ByteBuffer buffer(long address, long bytes);

  /** Where the memory of a direct buffer begins, whatever its position; 0 for another one. */
  long address(Buffer buffer);

  /** Where each object is at this moment, 0 for null, if the collector is G1. It may move them at any time. */
  long[] objects(Object[] objects);

  /**
   * Asks for runs of pages of this process ({@code PAGEMAP_SCAN}, Linux 6.7; Documentation/admin-guide/mm/pagemap.rst).
   *
   * @param argument address of a {@code struct pm_scan_arg}, as {@link PageMap} writes it
   * @return how many runs the kernel has written, or the negative number of the error
   */
  int scan(long argument);
}
