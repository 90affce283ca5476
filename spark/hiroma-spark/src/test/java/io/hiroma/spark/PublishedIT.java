package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.spark.launcher.JavaModuleOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A stock {@code spark-submit} that takes the plugin from a Maven repository ({@code spark/publish}), in local mode. */
@Timeout(600)
class PublishedIT {
  @TempDir
  Path directory;

  @Test
  void packagesBringsThePluginAndNothingElse() throws IOException, InterruptedException {
    String repository = System.getProperty("hiroma.repository", "");
    if (repository.isEmpty()) {
      System.out.println("skipped: no -Dhiroma.repository is given");
      assumeFalse(true);
    }
    String[] jars = System.getProperty("hiroma.jars").split(",");
    String version = Path.of(jars[0]).getFileName().toString().replaceAll("hiroma-spark-(.*)\\.jar", "$1");
    // Nobody else's repositories are asked, which may not answer.
    Path settings = Files.writeString(directory.resolve("ivysettings.xml"), "<ivysettings></ivysettings>");
    List<String> command = new ArrayList<>(List.of(Cluster.realJava(), "-Xmx512m"));
    command.addAll(List.of(JavaModuleOptions.defaultModuleOptions().split(" ")));
    command.addAll(List.of("-cp", System.getenv("SPARK_DIST_CLASSPATH"), "org.apache.spark.deploy.SparkSubmit", "--master", "local[1]",
        "--packages", "io.hiroma:hiroma-spark:" + version, "--repositories", repository, "--conf", "spark.jars.ivy=" + directory.resolve("ivy"),
        "--conf", "spark.jars.ivySettings=" + settings,
        "--conf", "spark.ui.enabled=false", "--conf", "spark.plugins=" + HiromaPlugin.class.getName(), "--conf", "spark.hiroma.policy=part",
        "--class", KMeans.class.getName(), jars[1], "2", "8", "2"));
    Path said = directory.resolve("said");
    Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile()).start();
    try {
      assertTrue(process.waitFor(500, TimeUnit.SECONDS), () -> "no end: " + read(said));
      String all = read(said);
      String policy = Jvm.facts().thp().equals("madvise") ? "part" : "(part|off)";
      assertTrue(all.lines().anyMatch(line -> line.matches(KMeans.RESULT + " [0-9.E-]+ driver " + policy + " .*")), all);
      try (var found = Files.list(directory.resolve("ivy").resolve("jars"))) {
        assertTrue(found.allMatch(jar -> jar.getFileName().toString().equals("io.hiroma_hiroma-spark-" + version + ".jar")), all);
      }
    } finally {
      process.descendants().forEach(ProcessHandle::destroyForcibly);
      process.destroyForcibly();
    }
  }

  private static String read(Path file) {
    try {
      return Files.readString(file);
    } catch (IOException error) {
      return error.toString();
    }
  }
}
