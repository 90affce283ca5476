package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.module.ModuleFinder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/** What the tests do with a stock Spark whose executors are processes of their own, and with the jar as users get it. */
final class Cluster {
  static final int PARTITIONS = 3;
  static final int PARTITION_BYTES = 40 << 20;
  /** Far less than what is cached, and far more than what is left when it is gone. */
  static final long SOME = PARTITION_BYTES / 2;
  /** Looks, and not seconds: a machine that stands still for a while, or has other things to do, has not looked. */
  private static final int LOOKS_MAX = 600;
  private static final long LOOK_MILLIS = 200;

  private Cluster() {}

  /** A cluster of {@code executors} with {@code mib} MiB of heap each. */
  static SparkConf conf(Policy policy, int executors, int mib) throws IOException {
    Files.createDirectories(Path.of(System.getenv("SPARK_HOME"), "jars"));
    Path scratch = Files.createDirectories(Path.of(System.getenv("SPARK_HOME"), "tmp"));
    return new SparkConf().setAppName("cached data").setMaster("local-cluster[" + executors + ",1," + mib + "]")
        .set("spark.plugins", HiromaPlugin.class.getName()).set("spark.hiroma.policy", policy.word())
        .set("spark.hiroma.report.millis", "500").set("spark.hiroma.sweep.millis", "200")
        .set("spark.jars", System.getProperty("hiroma.jars")).set("spark.executor.memory", mib + "m").set("spark.ui.enabled", "false")
        // A machine that stands still for a minute has lost nobody.
        .set("spark.worker.timeout", "600").set("spark.network.timeout", "600s")
        // Executors that are killed leave the libraries behind that they unpacked.
        .set("spark.executor.defaultJavaOptions", "-Djava.io.tmpdir=" + scratch)
        // Executors run on the JDK that the tests run on.
        .set("spark.executorEnv.JAVA_HOME", home())
        .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1");
  }

  /** The JDK's directory. Spark 4 asks for a module that small runtimes lack, and does without it in its own code. */
  private static String home() throws IOException {
    if (ModuleFinder.ofSystem().find("jdk.incubator.vector").isPresent()) {
      return System.getProperty("java.home");
    }
    return javaHome(Path.of(System.getenv("SPARK_HOME"), "without-vector"), """
        left=$#
        while [ $left -gt 0 ]; do
          [ "$1" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$1"
          shift
          left=$((left - 1))
        done""").toString();
  }

  /** Checks every number of {@link Probe#numbers}: no policy changes a result. */
  static void check(JavaRDD<long[]> numbers, int partitions, int bytes) {
    long pieces = bytes / 8192;
    long wanted = 0;
    for (long part = 0; part < partitions; part++) {
      wanted += 1024 * part * (pieces * (pieces - 1) / 2) + pieces * (1023 * 512);
    }
    assertEquals(wanted, numbers.map(piece -> java.util.Arrays.stream(piece).sum()).reduce(Long::sum));
  }

  static Probe look(JavaSparkContext context, String what) {
    Probe probe = context.parallelize(List.of(1), 1).map(any -> Probe.here()).first();
    System.out.println(what + ": " + probe);
    return probe;
  }

  /** Looks until what is seen is {@code enough}. */
  static Probe await(JavaSparkContext context, String what, Predicate<Probe> enough) {
    Probe[] last = new Probe[1];
    until(() -> enough.test(last[0] = look(context, what)), () -> String.valueOf(last[0]));
    return last[0];
  }

  /** Asks again and again until it is true. */
  static void until(Callable<Boolean> isTrue, java.util.function.Supplier<String> otherwise) {
    try {
      for (int look = 0; !isTrue.call(); look++) {
        assertTrue(look < LOOKS_MAX, otherwise);
        Thread.sleep(LOOK_MILLIS);
      }
    } catch (Exception error) {
      throw new AssertionError(otherwise.get(), error);
    }
  }

  /** Whether huge pages are had on request, so that what is on them says something about the policy. */
  static boolean onRequest(Probe probe) {
    if (!probe.thp().equals("madvise")) {
      System.out.println("skipped: transparent huge pages are \"" + probe.thp() + "\" and not \"madvise\"");
    }
    return probe.thp().equals("madvise");
  }

  /** A directory for {@code JAVA_HOME} whose {@code java} does {@code before} and then becomes the real one; {@code "$@"} are its arguments. */
  static Path javaHome(Path directory, String before, String... options) throws IOException {
    Path java = directory.resolve("bin").resolve("java");
    Files.createDirectories(java.getParent());
    Files.writeString(java, "#!/bin/sh\n" + before + "\nexec " + realJava() + " " + String.join(" ", options) + " \"$@\"\n");
    Files.setPosixFilePermissions(java, PosixFilePermissions.fromString("rwxr-xr-x"));
    return directory;
  }

  static String realJava() {
    return Path.of(System.getProperty("java.home"), "bin", "java").toString();
  }
}
