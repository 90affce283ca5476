package io.hiroma.jvm;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Optional;

/**
 * {@code java.lang.foreign} (JEP 454, JDK 22), looked up by name since this is compiled for JDK 17. Pointers are numbers of 64 bits, which the
 * calling conventions of x86-64 and aarch64 pass in the same way.
 */
final class ForeignFunctions {
  /** How errors are told: the C library's {@code errno} as it was right after a call. One call at a time, see {@link ForeignCalls}. */
  final ByteBuffer errno;

  private final Class<?> segment = type("MemorySegment");
  private final Class<?> layout = type("MemoryLayout");
  private final Class<?> option = type("Linker$Option");
  private final Class<?> descriptor = type("FunctionDescriptor");
  private final Object linker = call(type("Linker"), "nativeLinker", null);
  private final Object libraries = call(type("Linker"), "defaultLookup", linker);
  private final Object captured;

  /**
   * Looks at what there is.
   *
   * @throws ReflectiveOperationException if this JDK is older than 22
   */
  ForeignFunctions() throws ReflectiveOperationException {
    Object state = call(option, "captureStateLayout", null);
    Class<?> arena = type("Arena");
    captured = arena.getMethod("allocate", layout).invoke(call(arena, "global", null), state);
    // Of Linux there is nothing but errno in it.
    errno = ((ByteBuffer) call(segment, "asByteBuffer", captured)).order(ByteOrder.nativeOrder());
  }

  private static Class<?> type(String name) throws ClassNotFoundException {
    return Class.forName("java.lang.foreign." + name);
  }

  private static Object call(Class<?> type, String name, Object receiver) throws ReflectiveOperationException {
    return type.getMethod(name).invoke(receiver);
  }

  /**
   * A function of the C library.
   *
   * @param firstVariadic number of the first parameter that its declaration leaves open; -1 if it has none
   * @throws IllegalCallerException if the JVM denies native access
   */
  MethodHandle function(String name, int firstVariadic, Class<?> returned, Class<?>... parameters) throws ReflectiveOperationException {
    Object[] layouts = layouts(parameters);
    Method of = descriptor.getMethod("of", layout, layouts.getClass());
    Object described = of.invoke(null, layout(returned), layouts);
    Object options = Array.newInstance(option, firstVariadic < 0 ? 1 : 2);
    Array.set(options, 0, option.getMethod("captureCallState", String[].class).invoke(null, (Object) new String[] {"errno"}));
    if (firstVariadic >= 0) {
      Array.set(options, 1, option.getMethod("firstVariadicArg", int.class).invoke(null, firstVariadic));
    }
    Optional<?> found = (Optional<?>) type("SymbolLookup").getMethod("find", String.class).invoke(libraries, name);
    Object address = found.orElseThrow(() -> new NoSuchMethodException("the C library has no " + name));
    Method downcall = type("Linker").getMethod("downcallHandle", segment, descriptor, options.getClass());
    try {
      MethodHandle handle = (MethodHandle) downcall.invoke(linker, address, described, options);
      return MethodHandles.insertArguments(handle, 0, captured);
    } catch (InvocationTargetException error) {
      if (error.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      throw error;
    }
  }

  private Object[] layouts(Class<?>... parameters) throws ReflectiveOperationException {
    Object[] layouts = (Object[]) Array.newInstance(layout, parameters.length);
    for (int number = 0; number < parameters.length; number++) {
      layouts[number] = layout(parameters[number]);
    }
    return layouts;
  }

  private static Object layout(Class<?> primitive) throws ReflectiveOperationException {
    return type("ValueLayout").getField(primitive == int.class ? "JAVA_INT" : "JAVA_LONG").get(null);
  }

  /** From a direct buffer to the address of its position: {@code (Buffer) long}. */
  MethodHandle addressOfBuffer() throws ReflectiveOperationException {
    MethodHandle of = MethodHandles.lookup().findStatic(segment, "ofBuffer", MethodType.methodType(segment, Buffer.class));
    return MethodHandles.filterReturnValue(of, MethodHandles.lookup().findVirtual(segment, "address", MethodType.methodType(long.class)));
  }

  /** From an address and a length to a direct buffer: {@code (long, long) ByteBuffer}. */
  MethodHandle bufferAtAddress() throws ReflectiveOperationException {
    MethodHandles.Lookup lookup = MethodHandles.lookup();
    MethodHandle of = lookup.findStatic(segment, "ofAddress", MethodType.methodType(segment, long.class));
    MethodHandle sized = lookup.findVirtual(segment, "reinterpret", MethodType.methodType(segment, long.class));
    MethodHandle buffer = lookup.findVirtual(segment, "asByteBuffer", MethodType.methodType(ByteBuffer.class));
    return MethodHandles.filterReturnValue(MethodHandles.filterArguments(sized, 0, of), buffer);
  }
}
