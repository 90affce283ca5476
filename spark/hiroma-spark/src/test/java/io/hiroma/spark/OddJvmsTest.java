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
      boolean staying = false;
      if (Jvm.collector() != Jvm.Collector.OTHER) {
        // An array that is old after collections lies where the heap says that objects stay.
        Object[] kept = {new byte[3 << 20]};
        for (int time = 0; time < 3; time++) {
          System.gc();
        }
        long at = Native.addresses(kept)[0];
        staying = new Heap(Native.heap()).staying().within(at, at + (3 << 20)) == 3 << 20;
      }
      System.out.println("refused " + SelfCheck.of(Policy.PART, Jvm.facts()).refusals() + " staying " + staying);
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
  void aJvmThatAsksForHugePagesItselfIsRefused() throws IOException, InterruptedException {
    for (String collector : List.of("UseG1GC", "UseSerialGC", "UseParallelGC")) {
      refuses("UseTransparentHugePages", "-XX:+" + collector, "-XX:+UseTransparentHugePages");
    }
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

  /** Any heap will do, and each must be where its tables say. */
  @Test
  void heapsOfAllShapesAreFound() throws IOException, InterruptedException {
    if (!Jvm.facts().thp().equals("madvise")) {
      System.out.println("skipped: transparent huge pages are \"" + Jvm.facts().thp() + "\" and not \"madvise\"");
      return;
    }
    for (String collector : List.of("UseG1GC", "UseSerialGC", "UseParallelGC")) {
      for (List<String> sizes : List.of(List.of("-Xms64m", "-Xmx64m"), List.of("-Xms16m", "-Xmx128m"), List.of("-Xmx3g"),
          List.of("-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"), List.of("-Xmx100m", "-XX:-UseCompressedOops"))) {
        List<String> options = new ArrayList<>(List.of("-XX:+" + collector));
        options.addAll(sizes);
        String said = check(List.of(), options.toArray(String[]::new));
        assertTrue(said.contains("refused []"), () -> options + ": " + said);
        assertTrue(said.contains("staying true"), () -> options + ": " + said);
      }
    }
  }
}
