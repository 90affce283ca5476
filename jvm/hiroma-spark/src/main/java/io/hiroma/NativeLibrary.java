package io.hiroma;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** {@code libhiroma_jvm.so} ({@code crates/jvm}), which lies in the jar. */
public final class NativeLibrary {
  private static final String PROBLEM = load();

  private NativeLibrary() {}

  /** Loads the library if that was not done before. Returns why it cannot be used; "" if it can. */
  public static String problem() {
    return PROBLEM;
  }

  private static String load() {
    String name = "/io/hiroma/native/" + System.getProperty("os.arch") + "/libhiroma_jvm.so";
    try (InputStream library = NativeLibrary.class.getResourceAsStream(name)) {
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
}
