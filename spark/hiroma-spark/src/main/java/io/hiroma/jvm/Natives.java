package io.hiroma.jvm;

import java.util.function.Supplier;

/**
 * The native calls of this JVM: through {@code java.lang.foreign} where that works (JDK 22), else through JNI. The property
 * {@code hiroma.native} ({@code foreign}, {@code jni}) takes one of them only.
 */
public final class Natives {
  /** What lets the JVM do either without a warning, and from some version on at all (JEP 472). */
  public static final String ACCESS_OPTION = "--enable-native-access=ALL-UNNAMED";
  static final String PROPERTY = "hiroma.native";
  private static final String FOREIGN = "foreign";
  private static final String JNI = "jni";
  static final int FOREIGN_SINCE = 22;
  private static final Choice CHOICE = choose(System.getProperty(PROPERTY, ""), Runtime.version().feature(), ForeignCalls::new, JniCalls::new);

  /**
   * What was found.
   *
   * @param calls null if there are none
   * @param problem why there are none; "" if there are
   * @param note what is not as one may have expected; "" if nothing is
   */
  record Choice(NativeCalls calls, String problem, String note) {}

  private Natives() {}

  static Choice choose(String wanted, int version, Supplier<NativeCalls> foreign, Supplier<NativeCalls> jni) {
    if (!wanted.isEmpty() && !wanted.equals(FOREIGN) && !wanted.equals(JNI)) {
      return new Choice(null, "-D" + PROPERTY + "=" + wanted + " is none of " + FOREIGN + ", " + JNI, "");
    }
    String refused = "";
    if (wanted.equals(FOREIGN) || wanted.isEmpty() && version >= FOREIGN_SINCE) {
      try {
        return new Choice(checked(foreign.get()), "", "");
      } catch (UnsupportedOperationException error) {
        refused = error.getMessage();
      }
    }
    if (wanted.equals(FOREIGN)) {
      return new Choice(null, refused, "");
    }
    try {
      return new Choice(checked(jni.get()), "", refused.isEmpty() ? "" : "native calls go through JNI: " + refused);
    } catch (UnsupportedOperationException error) {
      String both = refused.isEmpty() || refused.equals(error.getMessage()) ? "" : refused + "; ";
      return new Choice(null, both + error.getMessage(), "");
    }
  }

  /** A call whose answer is known: advice on what is not mapped. */
  private static NativeCalls checked(NativeCalls calls) {
    final int notMapped = 12;
    int error;
    try {
      error = calls.advise(0, 1 << 21, NativeCalls.HUGE);
    } catch (RuntimeException | LinkageError failed) {
      throw new UnsupportedOperationException(calls.way() + " does not work here (" + failed + ")", failed);
    }
    if (error != notMapped) {
      throw new UnsupportedOperationException(calls.way() + " does not work here (advice on what is not mapped is answered with " + error + ")");
    }
    return calls;
  }

  /**
   * The calls.
   *
   * @throws IllegalStateException where {@link #problem} says why
   */
  public static NativeCalls calls() {
    if (CHOICE.calls() == null) {
      throw new IllegalStateException(CHOICE.problem());
    }
    return CHOICE.calls();
  }

  /** Why there are none, as a sentence; "" if there are. */
  public static String problem() {
    return CHOICE.problem();
  }

  /** What is not as one may have expected, as a sentence; "" if nothing is. */
  public static String note() {
    return CHOICE.note();
  }

  /** The way, as logs and the web UI name it. */
  public static String way() {
    return CHOICE.calls() == null ? "none" : CHOICE.calls().way();
  }
}
