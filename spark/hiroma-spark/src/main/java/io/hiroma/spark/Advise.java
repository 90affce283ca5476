package io.hiroma.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.deploy.history.EventLogFileReader;

/**
 * Where the plugin can gain anything in an application that has ended, from its event log ({@code spark.eventLog.dir}): in the tasks that
 * read what others had cached in memory. {@code spark-submit --class io.hiroma.spark.Advise hiroma-spark.jar LOG}
 */
public final class Advise {
  private static final String USAGE =
      "usage: spark-submit --class io.hiroma.spark.Advise hiroma-spark.jar LOG, a file or directory of spark.eventLog.dir";
  /** Below this share of the time of all tasks there is nothing to be had. */
  private static final double SHARE_MIN = 0.05;
  private static final int STAGES_TOLD = 10;

  /** Stages of one name, which are one line of the program. */
  private static final class Line {
    private long millis;
    private long tasks;
    private long bytes;
  }

  private final Map<Integer, String> names = new HashMap<>();
  private final Set<Integer> reading = new HashSet<>();
  private final Set<Integer> stored = new HashSet<>();
  private final Map<Integer, Set<Integer>> storing = new HashMap<>();
  private final Map<String, Line> lines = new TreeMap<>();
  private String application = "";
  private long allMillis;
  private long events;

  public static void main(String[] arguments) throws IOException {
    if (arguments.length != 1 || arguments[0].startsWith("-")) {
      System.err.println(USAGE);
      System.exit(2);
    }
    Advise advise = new Advise();
    try {
      advise.read(new Path(arguments[0]));
    } catch (IOException | IllegalArgumentException error) {
      System.err.println("hiroma: " + arguments[0] + " cannot be read: " + error.getMessage() + "\n" + USAGE);
      System.exit(1);
    }
    advise.print(System.out);
  }

  /** Reads a log, or the pieces of one that was rolled. */
  void read(Path path) throws IOException {
    FileSystem files = path.getFileSystem(new Configuration());
    if (files.getFileStatus(path).isDirectory()) {
      FileStatus[] pieces = files.listStatus(path, each -> each.getName().startsWith("events_"));
      if (pieces.length == 0) {
        throw new IOException("it is a directory without a file events_*; the log of one application is wanted");
      }
      // events_1_app, events_2_app, ... events_10_app
      Arrays.sort(pieces, Comparator.comparingInt(piece -> Integer.parseInt(piece.getPath().getName().split("_")[1])));
      for (FileStatus piece : pieces) {
        read(piece.getPath(), files);
      }
    } else {
      read(path, files);
    }
    if (events == 0) {
      throw new IOException("it has no events of Spark");
    }
  }

  private void read(Path path, FileSystem files) throws IOException {
    try (BufferedReader reader =
        new BufferedReader(new InputStreamReader(EventLogFileReader.openEventLog(path, files), StandardCharsets.UTF_8))) {
      read(reader);
    }
  }

  void read(BufferedReader reader) throws IOException {
    ObjectMapper mapper = new ObjectMapper();
    for (String line = reader.readLine(); line != null; line = reader.readLine()) {
      try {
        event(mapper.readTree(line));
      } catch (com.fasterxml.jackson.core.JsonProcessingException cutOff) {
        // The last line of an application that was killed.
        continue;
      }
    }
  }

  private void event(JsonNode event) {
    switch (event.path("Event").asText()) {
      case "SparkListenerApplicationStart" -> {
        events++;
        application = event.path("App Name").asText() + ", " + event.path("App ID").asText();
      }
      case "SparkListenerStageSubmitted" -> submitted(event.path("Stage Info"));
      case "SparkListenerStageCompleted" -> stored.addAll(storing.getOrDefault(event.path("Stage Info").path("Stage ID").asInt(), Set.of()));
      case "SparkListenerUnpersistRDD" -> stored.remove(event.path("RDD ID").asInt());
      case "SparkListenerTaskEnd" -> task(event);
      default -> { }
    }
  }

  private void submitted(JsonNode stage) {
    events++;
    int number = stage.path("Stage ID").asInt();
    names.put(number, stage.path("Stage Name").asText());
    Set<Integer> kept = new HashSet<>();
    for (JsonNode rdd : stage.path("RDD Info")) {
      if (rdd.path("Storage Level").path("Use Memory").asBoolean()) {
        kept.add(rdd.path("RDD ID").asInt());
      }
    }
    // The first stage that has it is the one that stores it.
    if (kept.stream().anyMatch(stored::contains)) {
      reading.add(number);
    }
    storing.put(number, kept);
  }

  private void task(JsonNode event) {
    int stage = event.path("Stage ID").asInt();
    JsonNode metrics = event.path("Task Metrics");
    long millis = metrics.path("Executor Run Time").asLong();
    long bytes = metrics.path("Input Metrics").path("Bytes Read").asLong();
    allMillis += millis;
    if (reading.contains(stage) && bytes > 0) {
      Line line = lines.computeIfAbsent(names.getOrDefault(stage, "?"), any -> new Line());
      line.millis += millis;
      line.bytes += bytes;
      line.tasks++;
    }
  }

  /** Seconds of all tasks, and of those that read cached data. */
  double[] seconds() {
    return new double[] {allMillis / 1e3, lines.values().stream().mapToLong(line -> line.millis).sum() / 1e3};
  }

  void print(PrintStream out) {
    double all = seconds()[0];
    double cached = seconds()[1];
    out.println(application);
    out.printf(Locale.ROOT, "tasks ran %.1f s; those that read cached data %.1f s (%.0f %%)%n", all, cached, all == 0 ? 0 : 100 * cached / all);
    List<Map.Entry<String, Line>> most = new ArrayList<>(lines.entrySet());
    most.sort(Comparator.comparingLong((Map.Entry<String, Line> entry) -> -entry.getValue().millis));
    if (!most.isEmpty()) {
      out.printf("%n%-50s %8s %10s %16s%n", "stage", "tasks", "seconds", "cached, MiB read");
    }
    most.stream().limit(STAGES_TOLD).forEach(entry -> out.printf(Locale.ROOT, "%-50s %8d %10.1f %16.1f%n", entry.getKey(),
        entry.getValue().tasks, entry.getValue().millis / 1e3, entry.getValue().bytes / 1048576.0));
    out.println();
    if (cached < SHARE_MIN * all) {
      out.println("This application hardly reads cached data: there is nothing here for the plugin to gain.");
    } else {
      // What is said of the figure is in docs/results/spark.md.
      out.println("Only the tasks that read cached data can gain. How much depends on the machine: where it was measured last, no gain was\n"
          + "told from chance (0.97 of the time in the middle, single turns 0.91 to 1.55). spark.hiroma.policy=auto measures it on the running job.");
    }
  }
}
