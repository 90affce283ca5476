package io.hiroma.jvm;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;

/**
 * Where objects are, read from the references in an array. {@code sun.misc.Unsafe} reads them, whose methods make the
 * JVM warn from JDK 24 on, once, and will be gone one day (JEP 498). Spark itself cannot do without them.
 */
final class References {
  private final MethodHandle getInt;
  private final MethodHandle getLong;
  private final long first;
  private final long each;
  private final NativeCalls calls;
  /** How references of 32 bits become addresses; read at the first use. */
  private long base;
  private int shift = -1;

  /**
   * Looks the methods up and tries one.
   *
   * @throws ReflectiveOperationException if this JDK has none
   */
  References(NativeCalls calls) throws ReflectiveOperationException {
    this.calls = calls;
    Class<?> type = Class.forName("sun.misc.Unsafe");
    Field field = type.getDeclaredField("theUnsafe");
    field.setAccessible(true);
    Object unsafe = field.get(null);
    MethodHandles.Lookup lookup = MethodHandles.publicLookup();
    getInt = lookup.bind(unsafe, "getInt", MethodType.methodType(int.class, Object.class, long.class));
    getLong = lookup.bind(unsafe, "getLong", MethodType.methodType(long.class, Object.class, long.class));
    first = (int) type.getMethod("arrayBaseOffset", Class.class).invoke(unsafe, Object[].class);
    each = (int) type.getMethod("arrayIndexScale", Class.class).invoke(unsafe, Object[].class);
    read(new Object[1], 0);
  }

  private long read(Object[] array, int index) {
    try {
      if (each == Long.BYTES) {
        return (long) getLong.invokeExact((Object) array, first + index * each);
      }
      return Integer.toUnsignedLong((int) getInt.invokeExact((Object) array, first + index * each));
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  long[] addresses(Object[] objects) {
    if (each != Long.BYTES) {
      readCompression();
    }
    long[] found = new long[objects.length];
    for (int index = 0; index < found.length; index++) {
      long reference = read(objects, index);
      found[index] = reference == 0 || each == Long.BYTES ? reference : base + (reference << shift);
    }
    return found;
  }

  private synchronized void readCompression() {
    if (shift < 0) {
      try (OwnMemory memory = OwnMemory.open()) {
        VmStructs tables = VmStructs.read(memory, calls::symbol, type -> type.equals("CompressedOops"));
        base = memory.readLong(tables.staticField("_base", "CompressedOops"));
        shift = memory.readInt(tables.staticField("_shift", "CompressedOops"));
      }
    }
  }
}
