package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** What an executor would say in JVMs of other settings: real ones, started for that. */
class OddJvmsTest {
  /** Has a thread's process and its children denied huge pages ({@code PR_SET_THP_DISABLE}, prctl(2)) and becomes its arguments. */
  private static final String DENIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])";

  /** Runs in the JVM that is asked about. */
  public static final class Check {
    public static void main(String[] arguments) {
      System.out.println("refused " + SelfCheck.of(Policy.PART, Jvm.facts(Completion.CHUNK_BYTES)).refusals());
    }
  }

  /** What the check says; "" if this JDK cannot be started so. */
  private static String check(List<String> before, String... options) throws IOException, InterruptedException {
    List<String> command = new ArrayList<>(before);
    command.add(ProcessHandle.current().info().command().orElseThrow());
    command.addAll(List.of(options));
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), Check.class.getName()));
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    try {
      process.getOutputStream().close();
      String said = new String(process.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
      assertTrue(process.waitFor(60, TimeUnit.SECONDS));
      int at = said.indexOf("refused ");
      if (at < 0) {
        System.out.println("skipped: this JDK does not start with " + List.of(options) + ": " + said.lines().findFirst().orElse(""));
        return "";
      }
      return said.substring(at);
    } finally {
      process.destroyForcibly();
    }
  }

  private static void refuses(String wanted, String... options) throws IOException, InterruptedException {
    String said = check(List.of(), options);
    assertTrue(said.isEmpty() || said.contains(wanted), said);
  }

  @Test
  void otherCollectorsAreRefused() throws IOException, InterruptedException {
    for (String collector : List.of("UseParallelGC", "UseSerialGC", "UseZGC", "UseShenandoahGC")) {
      refuses("the collector is not G1; wanted: -XX:+UseG1GC", "-Xmx128m", "-XX:+" + collector);
    }
  }

  @Test
  void heapsThatGrowOrWereTouchedAreRefused() throws IOException, InterruptedException {
    refuses("the heap can grow", "-XX:+UseG1GC", "-Xms64m", "-Xmx128m");
    refuses("AlwaysPreTouch", "-XX:+UseG1GC", "-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch");
    refuses("UseTransparentHugePages", "-XX:+UseG1GC", "-Xms64m", "-Xmx64m", "-XX:+UseTransparentHugePages");
  }

  @Test
  void processesThatAreDeniedHugePagesSayNever() throws IOException, InterruptedException {
    try {
      String said = check(List.of("python3", "-c", DENIED), "-XX:+UseG1GC", "-Xms64m", "-Xmx64m");
      assertTrue(said.contains("\"never\""), said);
    } catch (IOException noPython) {
      System.out.println("skipped: there is no python3 to deny a process huge pages with");
    }
  }

  @Test
  void aJvmAsTheDriverAsksForItIsGood() throws IOException, InterruptedException {
    if (Jvm.facts(0).thp().equals("madvise")) {
      assertEquals("refused []", check(List.of(), "-XX:+UseG1GC", "-Xms64m", "-Xmx64m", "-XX:G1HeapRegionSize=4m").trim());
    }
  }
}
