package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.StringReader;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class AdviseTest {
  @TempDir
  Path directory;

  private static String stage(String event, int number, int rdd) {
    return "{\"Event\":\"SparkListenerStage" + event + "\",\"Stage Info\":{\"Stage ID\":" + number + ",\"Stage Name\":\"sum at job.py:3\","
        + "\"Number of Tasks\":1,\"RDD Info\":[{\"RDD ID\":" + rdd + ",\"Storage Level\":{\"Use Memory\":true}},"
        + "{\"RDD ID\":99,\"Storage Level\":{\"Use Memory\":false}}]}}\n";
  }

  private static String task(int stage, int millis, long bytes) {
    return "{\"Event\":\"SparkListenerTaskEnd\",\"Stage ID\":" + stage + ",\"Task Metrics\":{\"Executor Run Time\":" + millis
        + ",\"Input Metrics\":{\"Bytes Read\":" + bytes + "}}}\n";
  }

  private static org.apache.hadoop.fs.Path hadoop(Path path) {
    return new org.apache.hadoop.fs.Path(path.toUri());
  }

  private static final String START = "{\"Event\":\"SparkListenerApplicationStart\",\"App Name\":\"a job\",\"App ID\":\"app-1\"}\n";
  private static final String CACHING = stage("Submitted", 0, 4) + task(0, 5_000, 1 << 20) + stage("Completed", 0, 4);
  private static final String READING = stage("Submitted", 1, 4) + task(1, 3_000, 2 << 20) + task(1, 1_000, 0) + stage("Completed", 1, 4);

  private static String advice(String log) throws IOException {
    Advise advise = new Advise();
    advise.read(new BufferedReader(new StringReader(log)));
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    advise.print(new PrintStream(out));
    return out.toString();
  }

  /** Files are opened by the Hadoop that Spark brings, and that of Spark 3.5 does not start on newer JDKs. */
  private static void needHadoop() {
    if (Runtime.version().feature() >= 24) {
      System.out.println("skipped: the Hadoop of Spark 3.5 reads no files on JDK 24 and newer");
      assumeFalse(true);
    }
  }

  @Test
  void tasksThatReadWhatOthersCachedAreCounted() throws IOException {
    String said = advice(START + CACHING + READING + "{\"Event\":\"Spark");
    assertTrue(said.startsWith("a job, app-1\ntasks ran 9.0 s; those that read cached data 3.0 s (33 %)\n"), said);
    assertTrue(said.contains("sum at job.py:3") && said.contains("no gain was\ntold from chance") && !said.contains("save"), said);
  }

  @Test
  void whatIsUnpersistedIsCachedAnew() throws IOException {
    String unpersisted = "{\"Event\":\"SparkListenerUnpersistRDD\",\"RDD ID\":4}\n";
    String said = advice(START + CACHING + unpersisted + READING);
    assertTrue(said.contains("hardly reads cached data"), said);
  }

  @Test
  void aLogInPiecesIsReadInTheirOrder() throws IOException {
    needHadoop();
    Path log = Files.createDirectory(directory.resolve("eventlog_v2_app-1"));
    Files.writeString(log.resolve("events_10_app-1"), READING);
    Files.writeString(log.resolve("events_2_app-1"), CACHING);
    Files.writeString(log.resolve("events_1_app-1"), START);
    Files.writeString(log.resolve("appstatus_app-1"), "");
    Advise advise = new Advise();
    advise.read(hadoop(log));
    assertEquals(3.0, advise.seconds()[1]);
  }

  @Test
  void whatIsNoLogIsAnError() throws IOException {
    needHadoop();
    Path empty = Files.createDirectory(directory.resolve("empty"));
    Path other = Files.writeString(directory.resolve("other"), "no JSON\n{}\n[1]\n");
    for (Path path : new Path[] {empty, other, directory.resolve("none")}) {
      assertThrows(IOException.class, () -> new Advise().read(hadoop(path)), path::toString);
    }
  }
}
