package io.hiroma.jvm;

import java.io.IOException;
import java.io.InputStream;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** {@code libhiroma_jvm.so} ({@code crates/spark-jni}), which lies in the jar: for JDK 17 to 21, and where {@link ForeignCalls} cannot be had. */
final class JniCalls implements NativeCalls {
  /**
   * Loads the library.
   *
   * @throws UnsupportedOperationException if it cannot be used, with a sentence that says why
   */
  JniCalls() {
    String name = "/io/hiroma/native/" + System.getProperty("os.arch") + "/libhiroma_jvm.so";
    try (InputStream library = JniCalls.class.getResourceAsStream(name)) {
      if (library == null) {
        throw new UnsupportedOperationException(
            "the jar has no library for this machine (" + System.getProperty("os.name") + ", " + System.getProperty("os.arch") + ")");
      }
      Path file = Files.createTempFile("libhiroma_jvm", ".so");
      try {
        Files.copy(library, file, StandardCopyOption.REPLACE_EXISTING);
        System.load(file.toString());
      } finally {
        // It stays mapped.
        Files.deleteIfExists(file);
      }
    } catch (IllegalCallerException denied) {
      throw new UnsupportedOperationException("this JVM denies native access; wanted: " + Natives.ACCESS_OPTION, denied);
    } catch (IOException | LinkageError | SecurityException error) {
      throw new UnsupportedOperationException("the library of the jar cannot be loaded (" + error.getMessage() + "); is "
          + System.getProperty("java.io.tmpdir") + " mounted noexec? -Djava.io.tmpdir= names another directory", error);
    }
  }

  @Override
  public String way() {
    return "JNI";
  }

  @Override
  public int advise(long address, long bytes, int kind) {
    return advise0(address, bytes, kind);
  }

  @Override
  public long symbol(String name) {
    return symbol0(name);
  }

  @Override
  public long map(long bytes) {
    return map0(bytes);
  }

  @Override
  public void unmap(long address, long bytes) {
    unmap0(address, bytes);
  }

  @Override
  public ByteBuffer buffer(long address, long bytes) {
    return buffer0(address, bytes);
  }

  @Override
  public long address(Buffer buffer) {
    return address0(buffer);
  }

  @Override
  public long[] objects(Object[] objects) {
    return objects0(objects);
  }

  @Override
  public int scan(long argument) {
    return scan0(argument);
  }

  private static native int advise0(long address, long bytes, int kind);

  private static native long symbol0(String name);

  private static native long map0(long bytes);

  private static native void unmap0(long address, long bytes);

  private static native ByteBuffer buffer0(long address, long bytes);

  private static native long address0(Buffer buffer);

  private static native long[] objects0(Object[] objects);

  private static native int scan0(long argument);
}
