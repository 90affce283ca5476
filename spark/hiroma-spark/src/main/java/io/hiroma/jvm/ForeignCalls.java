package io.hiroma.jvm;

import java.lang.invoke.MethodHandle;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** The C library through {@code java.lang.foreign}: JDK 22 and newer, on whatever processor, without a library in the jar. */
final class ForeignCalls implements NativeCalls {
  private static final int EINVAL = 22;
  /** By kind; the same on all processors that Linux has huge pages on, but for PA-RISC (uapi/asm-generic/mman-common.h). */
  private static final int[] ADVICE = {14, 15, 25, 20};
  private static final long PAGE_BYTES = 4096;
  private static final int PROT_READ_WRITE = 3;
  private static final int MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x4022;
  private static final int O_RDONLY_CLOEXEC = 0x80000;
  /** {@code _IOWR('f', 16, struct pm_scan_arg)}, of 96 bytes. */
  private static final long PAGEMAP_SCAN = 3L << 30 | 96L << 16 | 'f' << 8 | 16;

  private final ForeignFunctions functions;
  private final MethodHandle madvise;
  private final MethodHandle dlsym;
  private final MethodHandle mmap;
  private final MethodHandle munmap;
  private final MethodHandle open;
  private final MethodHandle ioctl;
  private final MethodHandle addressOfBuffer;
  private final MethodHandle bufferAtAddress;
  /** Looked up at the first use: it is what newer JVMs warn of. */
  private References references;
  /** Its descriptor; negative until it is opened, which stays so. */
  private int pagemap = -1;

  /**
   * Looks everything up.
   *
   * @throws UnsupportedOperationException if it cannot be used, with a sentence that says why
   */
  ForeignCalls() {
    int version = Runtime.version().feature();
    if (version < Natives.FOREIGN_SINCE) {
      throw new UnsupportedOperationException("java.lang.foreign needs JDK " + Natives.FOREIGN_SINCE + ", and this is " + version);
    }
    try {
      functions = new ForeignFunctions();
      madvise = functions.function("madvise", -1, int.class, long.class, long.class, int.class);
      dlsym = functions.function("dlsym", -1, long.class, long.class, long.class);
      mmap = functions.function("mmap", -1, long.class, long.class, long.class, int.class, int.class, int.class, long.class);
      munmap = functions.function("munmap", -1, int.class, long.class, long.class);
      open = functions.function("open", 2, int.class, long.class, int.class, int.class);
      ioctl = functions.function("ioctl", 2, int.class, int.class, long.class, long.class);
      addressOfBuffer = functions.addressOfBuffer();
      bufferAtAddress = functions.bufferAtAddress();
    } catch (IllegalCallerException denied) {
      throw new UnsupportedOperationException("this JVM denies native access; wanted: " + Natives.ACCESS_OPTION, denied);
    } catch (ReflectiveOperationException | RuntimeException | LinkageError error) {
      Throwable cause = error.getCause() == null ? error : error.getCause();
      throw new UnsupportedOperationException("java.lang.foreign cannot be used (" + cause + ")", error);
    }
  }

  @Override
  public String way() {
    return "java.lang.foreign";
  }

  /** What a call is: it returns a number, and errors are in {@code errno}, of which there is one for all. */
  private interface Call {
    long make() throws Throwable;
  }

  /** The result, or the negative number of the error if it is -1. */
  private synchronized long result(Call call) {
    long value = plain(call);
    return value == -1 ? -functions.errno.getInt(0) : value;
  }

  private static long plain(Call call) {
    try {
      return call.make();
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable impossible) {
      // Handles of the linker declare it and throw none.
      throw new IllegalStateException(impossible);
    }
  }

  @Override
  public int advise(long address, long bytes, int kind) {
    if (kind < 0 || kind >= ADVICE.length) {
      return EINVAL;
    }
    long length = kind == SPLIT ? Math.min(PAGE_BYTES, bytes) : bytes;
    return (int) -result(() -> (int) madvise.invokeExact(address, length, ADVICE[kind]));
  }

  @Override
  public synchronized long symbol(String name) {
    ByteBuffer text = text(name);
    return plain(() -> (long) dlsym.invokeExact(0L, address(text)));
  }

  private static ByteBuffer text(String characters) {
    byte[] bytes = characters.getBytes(StandardCharsets.UTF_8);
    // One more than that, which is zero.
    return ByteBuffer.allocateDirect(bytes.length + 1).put(bytes);
  }

  @Override
  public long map(long bytes) {
    return result(() -> (long) mmap.invokeExact(0L, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0L));
  }

  @Override
  public void unmap(long address, long bytes) {
    result(() -> (int) munmap.invokeExact(address, bytes));
  }

  @Override
  public ByteBuffer buffer(long address, long bytes) {
    try {
      return (ByteBuffer) bufferAtAddress.invokeExact(address, bytes);
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  @Override
  public long address(Buffer buffer) {
    // The linker counts from the position.
    return buffer.isDirect() ? plain(() -> (long) addressOfBuffer.invokeExact(buffer.duplicate().clear())) : 0;
  }

  @Override
  public long[] objects(Object[] objects) {
    return references().addresses(objects);
  }

  private synchronized References references() {
    if (references == null) {
      try {
        references = new References(this);
      } catch (ReflectiveOperationException | RuntimeException error) {
        Throwable cause = error.getCause() == null ? error : error.getCause();
        throw new IllegalStateException("this JVM does not tell where objects are (" + cause
            + "); wanted: --sun-misc-unsafe-memory-access=allow or -D" + Natives.PROPERTY + "=jni", error);
      }
    }
    return references;
  }

  @Override
  public synchronized int scan(long argument) {
    if (pagemap < 0) {
      ByteBuffer path = text("/proc/self/pagemap");
      pagemap = (int) result(() -> (int) open.invokeExact(address(path), O_RDONLY_CLOEXEC, 0));
    }
    return pagemap < 0 ? pagemap : (int) result(() -> (int) ioctl.invokeExact(pagemap, PAGEMAP_SCAN, argument));
  }
}
