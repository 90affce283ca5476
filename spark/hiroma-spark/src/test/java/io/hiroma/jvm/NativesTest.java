package io.hiroma.jvm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;

/** Which way is chosen, and what is said of it. */
class NativesTest {
  private static final Supplier<NativeCalls> REFUSED = () -> {
    throw new UnsupportedOperationException("not here");
  };

  @Test
  void olderJdksTakeJniAndNewerOnesOnlyIfTheyMust() {
    Supplier<NativeCalls> jni = JniCalls::new;
    assertEquals("JNI", Natives.choose("", 21, REFUSED, jni).calls().way());
    assertEquals("", Natives.choose("", 21, REFUSED, jni).note());
    Natives.Choice fallen = Natives.choose("", 22, REFUSED, jni);
    assertEquals("JNI", fallen.calls().way());
    assertEquals("native calls go through JNI: not here", fallen.note());
    assertEquals("", Natives.choose("jni", 25, REFUSED, jni).note());
  }

  @Test
  void whatIsAskedForIsTakenOrThereIsNothing() {
    assertEquals("not here", Natives.choose("foreign", 25, REFUSED, JniCalls::new).problem());
    assertEquals("not here", Natives.choose("", 25, REFUSED, REFUSED).problem());
    assertEquals("not here", Natives.choose("", 17, JniCalls::new, REFUSED).problem());
    assertTrue(Natives.choose("panama", 25, REFUSED, REFUSED).problem().contains("-Dhiroma.native=panama is none of foreign, jni"));
  }

  /** Runs in the JVM that is asked about. */
  public static final class Check {
    public static void main(String[] arguments) {
      System.out.println("way=" + Natives.way() + " problem=" + Natives.problem() + " note=" + Natives.note());
    }
  }

  private static String check(String... options) throws IOException, InterruptedException {
    List<String> command = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElseThrow(), "-Xmx64m"));
    command.addAll(List.of(options));
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), Check.class.getName()));
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    try {
      process.getOutputStream().close();
      String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      assertTrue(process.waitFor(60, TimeUnit.SECONDS));
      return said;
    } finally {
      process.destroyForcibly();
    }
  }

  @Test
  void thePropertyChooses() throws IOException, InterruptedException {
    assertTrue(check("-Dhiroma.native=jni").contains("way=JNI problem= note="), check("-Dhiroma.native=jni"));
    String said = check("-Dhiroma.native=foreign");
    assertTrue(Runtime.version().feature() >= 22 ? said.contains("way=java.lang.foreign problem= note=")
        : said.contains("way=none problem=java.lang.foreign needs JDK 22, and this is "), said);
  }

  /** From JDK 24 on JNI is denied as well, on 22 and 23 only java.lang.foreign is, before nothing. */
  @Test
  void deniedNativeAccessNamesTheOption() throws IOException, InterruptedException {
    int version = Runtime.version().feature();
    String denied = "this JVM denies native access; wanted: --enable-native-access=ALL-UNNAMED";
    String wanted = version >= 24 ? "way=none problem=" + denied + " note="
        : version >= 22 ? "way=JNI problem= note=native calls go through JNI: " + denied : "way=JNI problem= note=";
    String said = check("--enable-native-access=java.base", version >= 24 ? "--illegal-native-access=deny" : "-Dx=y");
    assertTrue(said.contains(wanted), said);
    String allowed = check("--enable-native-access=ALL-UNNAMED");
    assertTrue(allowed.contains("problem= note=") && !allowed.contains("WARNING: A restricted method"), allowed);
  }
}
