package io.hiroma.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** {@code libhiroma_jvm.so} ({@code crates/jvm}), which lies in the jar. */
final class Native {
  /** {@code MADV_HUGEPAGE}, {@code MADV_NOHUGEPAGE}, {@code MADV_COLLAPSE}. */
  static final int HUGE = 0;
  static final int SMALL = 1;
  static final int COLLAPSE = 2;

  private static final String PROBLEM = load();

  private Native() {}

  /** Why the library cannot be used; "" if it can. */
  static String problem() {
    return PROBLEM;
  }

  private static String load() {
    String name = "native/" + System.getProperty("os.arch") + "/libhiroma_jvm.so";
    try (InputStream library = Native.class.getResourceAsStream(name)) {
      if (library == null) {
        return "the jar has no library for this machine (" + System.getProperty("os.name") + ", " + System.getProperty("os.arch") + ")";
      }
      Path file = Files.createTempFile("libhiroma_jvm", ".so");
      try {
        Files.copy(library, file, StandardCopyOption.REPLACE_EXISTING);
        System.load(file.toString());
      } finally {
        // It stays mapped.
        Files.deleteIfExists(file);
      }
      return "";
    } catch (IOException | LinkageError | SecurityException error) {
      return "the library of the jar cannot be loaded (" + error.getMessage() + "); is " + System.getProperty("java.io.tmpdir")
          + " mounted noexec? -Djava.io.tmpdir= names another directory";
    }
  }

  /** Advises on {@code length} bytes from {@code address} on; 0, or the number of the error (errno(3)). */
  static native int advise(long address, long length, int advice);

  /**
   * First address of the heap, its bytes, and the bytes of a region.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static native long[] heap();

  /**
   * First address, end of what is used, and kind (as in {@link Region.Kind}) of each region of G1.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  static native long[] regions();

  /**
   * First and last address of each run of huge pages.
   *
   * @throws IllegalStateException if the kernel does not tell
   */
  static native long[] hugeRuns(long start, long end);
}
