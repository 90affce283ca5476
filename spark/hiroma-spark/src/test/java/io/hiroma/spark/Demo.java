package io.hiroma.spark;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * {@code make demo-spark}: a standalone cluster of a master and two workers, each a process of its own, runs {@link KMeans} once with each
 * policy; then a table shows where the memory went. Arguments: the jars, separated by commas, the plugin first and the job last.
 */
public final class Demo {
  private static final String PARTITIONS = "6";
  private static final String PARTITION_MIB = "40";
  private static final String ITERATIONS = "7";
  private static final long JOB_SECONDS_MAX = 300;

  private final List<Process> processes = new ArrayList<>();
  private final String jars;
  private final Path directory;
  private volatile boolean done;

  private Demo(String jars, Path directory) {
    this.jars = jars;
    this.directory = directory;
  }

  public static void main(String[] arguments) throws IOException, InterruptedException {
    Path directory = Files.createTempDirectory("hiroma-demo");
    Demo demo = new Demo(arguments[0], directory);
    Thread cleaning = new Thread(demo::end);
    Runtime.getRuntime().addShutdownHook(cleaning);
    demo.run();
  }

  private void run() throws IOException, InterruptedException {
    int port = freePort();
    System.err.println("starting a master and two workers");
    start("master", List.of("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", Integer.toString(port), "--webui-port", "0"));
    await(port);
    String master = "spark://127.0.0.1:" + port;
    for (String worker : List.of("worker-1", "worker-2")) {
      start(worker, List.of("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g",
          "--work-dir", directory.resolve(worker).toString(), master));
    }
    Map<Policy, List<String[]>> results = new LinkedHashMap<>();
    for (Policy policy : List.of(Policy.OFF, Policy.ENTIRE, Policy.PART)) {
      System.err.println("k-means over 240 MiB of cached points, " + policy.word());
      results.put(policy, job(master, policy));
    }
    print(results);
    done = true;
  }

  private List<String[]> job(String master, Policy policy) throws IOException, InterruptedException {
    Path output = directory.resolve("job-" + policy.word() + ".out");
    String[] each = jars.split(",");
    Process process = start("job-" + policy.word(), List.of("org.apache.spark.deploy.SparkSubmit", "--master", master, "--class", KMeans.class.getName(),
        "--jars", each[0], "--driver-memory", "512m", "--executor-memory", "1g",
        "--conf", "spark.plugins=" + HiromaPlugin.class.getName(), "--conf", "spark.hiroma.policy=" + policy.word(),
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1",
        // Both executors hold their share, also when one of them is late.
        "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0", "--conf", "spark.locality.wait=60s",
        each[1], PARTITIONS, PARTITION_MIB, ITERATIONS));
    if (!process.waitFor(JOB_SECONDS_MAX, TimeUnit.SECONDS) || process.exitValue() != 0) {
      throw new IOException("the job has failed; see " + output + " and job-" + policy.word() + ".err beside it");
    }
    return Files.readAllLines(output).stream().filter(line -> line.startsWith(KMeans.RESULT)).map(line -> line.split(" ")).toList();
  }

  private Process start(String name, List<String> what) throws IOException {
    List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx512m", "-cp",
        System.getenv("SPARK_DIST_CLASSPATH")));
    // What Spark's own scripts add.
    command.addAll(List.of(org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions().split(" ")));
    command.addAll(what);
    Process process = new ProcessBuilder(command).redirectOutput(directory.resolve(name + ".out").toFile())
        .redirectError(directory.resolve(name + ".err").toFile()).start();
    processes.add(process);
    return process;
  }

  private static int freePort() throws IOException {
    try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      return socket.getLocalPort();
    }
  }

  private void await(int port) throws IOException, InterruptedException {
    for (int attempt = 0; attempt < 600; attempt++) {
      try (Socket socket = new Socket()) {
        socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 100);
        return;
      } catch (IOException notYet) {
        Thread.sleep(100);
      }
    }
    throw new IOException("the master does not answer; see " + directory.resolve("master.err"));
  }

  /** Ends the processes, workers before the master; their logs stay only if something has gone wrong. */
  private void end() {
    for (int at = processes.size() - 1; at >= 0; at--) {
      processes.get(at).descendants().forEach(ProcessHandle::destroy);
      processes.get(at).destroy();
    }
    if (!done) {
      System.err.println("the logs are in " + directory);
      return;
    }
    try {
      for (Process process : processes) {
        process.waitFor(10, TimeUnit.SECONDS);
      }
      try (Stream<Path> found = Files.walk(directory)) {
        found.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
      }
    } catch (IOException | InterruptedException error) {
      System.err.println(directory + " is left: " + error);
    }
  }

  private static void print(Map<Policy, List<String[]>> results) {
    System.out.printf("%n%-8s %10s %12s %18s %17s %12s %14s%n", "policy", "executors", "cached", "of that on huge", "other on huge", "resident",
        "an iteration");
    results.forEach((policy, executors) -> {
      if (executors.stream().anyMatch(executor -> !executor[3].equals(policy.word()))) {
        System.out.printf("%-8s was not possible here; the reason is in an executor's log%n", policy.word());
      }
      System.out.printf("%-8s %10d %8d MiB %14d MiB %13d MiB %8d MiB %12.2f s%n", policy.word(), executors.size(), mib(executors, 4),
          mib(executors, 5), mib(executors, 6), mib(executors, 7),
          executors.stream().mapToDouble(executor -> Double.parseDouble(executor[1])).findFirst().orElse(0));
    });
    System.out.println("\nMedian of the iterations, on a machine that does other things as well: no measurement.");
  }

  /** Sum of the figures at {@code place}: after the word and the seconds come the entries of {@link Usage#message}. */
  private static long mib(List<String[]> executors, int place) {
    return executors.stream().mapToLong(executor -> Long.parseLong(executor[place])).sum() >> 20;
  }
}
