package io.hiroma.spark;

import static io.hiroma.spark.Cluster.PARTITIONS;
import static io.hiroma.spark.Cluster.PARTITION_BYTES;
import static io.hiroma.spark.Cluster.SOME;
import static io.hiroma.spark.Cluster.await;
import static io.hiroma.spark.Cluster.check;
import static io.hiroma.spark.Cluster.look;
import static io.hiroma.spark.Cluster.onRequest;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.storage.StorageLevel;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;

/** The policy part in one long-lived application: each kind of cached data, what is given back, and an executor that is killed. */
@Timeout(300)
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class CachedDataIT {
  private static Complaints complaints;
  private static SparkSession session;
  private static JavaSparkContext context;

  @BeforeAll
  static void start() throws IOException {
    complaints = Complaints.listen();
    SparkConf conf = Cluster.conf(Policy.PART, 1, 1024).set("spark.hiroma.typo", "1")
        .set("spark.memory.offHeap.enabled", "true").set("spark.memory.offHeap.size", "400m")
        .set("spark.sql.inMemoryColumnarStorage.batchSize", "100000").set("spark.sql.inMemoryColumnarStorage.compressed", "false");
    session = SparkSession.builder().config(conf).getOrCreate();
    context = JavaSparkContext.fromSparkContext(session.sparkContext());
  }

  @AfterAll
  static void stop() {
    if (context != null) {
      context.close();
    }
    complaints.close();
  }

  private static JavaRDD<long[]> numbers(StorageLevel level) {
    return Probe.numbers(context, PARTITIONS, PARTITION_BYTES).persist(level);
  }

  @Test
  @Order(1)
  void aTypingErrorInAKeyIsNamed() {
    assertTrue(complaints.said("there is no spark.hiroma.typo; did you mean spark.hiroma.policy?"), complaints::toString);
  }

  @Test
  @Order(2)
  void serialisedDataIsOnHugePagesAndHardlyAnythingElse() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY_SER());
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe probe = look(context, "serialised");
    assertTrue(probe.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES, probe::toString);
    assertTrue(probe.usage().cachedBytes() >= probe.chunkBytes(), probe::toString);
    if (onRequest(probe)) {
      assertEquals("part", probe.usage().policy());
      assertTrue(probe.chunkHugeBytes() > probe.chunkBytes() / 2, probe::toString);
      assertTrue(probe.youngHugeBytes() < probe.hugeBytes() / 2, probe::toString);
      assertTrue(probe.usage().cachedHugeBytes() >= probe.chunkHugeBytes() / 2, probe::toString);
    }
    check(cached, PARTITIONS, PARTITION_BYTES);
    cached.unpersist(true);
    await(context, "serialised, unpersisted", seen -> seen.chunkBytes() < SOME && seen.usage().cachedHugeBytes() < SOME);
  }

  @Test
  @Order(3)
  void dataOffTheHeapIsFoundAndGivenBack() {
    for (String what : List.of("off-heap", "off-heap, again")) {
      JavaRDD<long[]> cached = numbers(StorageLevel.OFF_HEAP());
      check(cached, PARTITIONS, PARTITION_BYTES);
      Probe first = look(context, what);
      assertTrue(first.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES, first::toString);
      if (onRequest(first)) {
        await(context, what, seen -> seen.chunkHugeBytes() > seen.chunkBytes() / 2);
      }
      check(cached, PARTITIONS, PARTITION_BYTES);
      cached.unpersist(true);
      await(context, what + ", unpersisted", seen -> seen.chunkBytes() < SOME
          && seen.residentBytes() < first.residentBytes() - SOME);
    }
  }

  @Test
  @Order(4)
  void deserialisedObjectsAreFoundOnceTheyAreOld() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY());
    check(cached, PARTITIONS, PARTITION_BYTES);
    if (onRequest(look(context, "objects"))) {
      // The collector decides when they become old; asked for it they all do.
      context.parallelize(List.of(1), 1).foreach(any -> System.gc());
      await(context, "objects", seen -> seen.usage().cachedHugeBytes() > seen.usage().cachedBytes() / 2
          && seen.usage().cachedBytes() >= PARTITION_BYTES);
    }
    check(cached, PARTITIONS, PARTITION_BYTES);
    cached.unpersist(true);
  }

  @Test
  @Order(5)
  void columnsOfADataFrameAreFound() {
    long rows = 3_000_000;
    Dataset<Row> cached = session.range(0, rows, 1, PARTITIONS).selectExpr("id", "id * 3 as three", "hash(id) as h").persist();
    assertEquals(rows, cached.count());
    if (onRequest(look(context, "DataFrame"))) {
      context.parallelize(List.of(1), 1).foreach(any -> System.gc());
      await(context, "DataFrame", seen -> seen.usage().cachedHugeBytes() > seen.usage().cachedBytes() / 2
          && seen.usage().cachedBytes() >= PARTITION_BYTES);
    }
    assertEquals(rows * (rows - 1) / 2, cached.selectExpr("sum(id)").first().getLong(0));
    cached.unpersist(true);
  }

  @Test
  @Order(10)
  void anExecutorThatIsKilledComesBackAndDataIsCachedAgain() {
    JavaRDD<long[]> cached = numbers(StorageLevel.MEMORY_ONLY_SER());
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe before = look(context, "before");
    ProcessHandle.of(before.pid()).orElseThrow().destroyForcibly();
    check(cached, PARTITIONS, PARTITION_BYTES);
    Probe after = await(context, "after", seen -> !seen.executor().equals(before.executor())
        && seen.chunkBytes() >= PARTITIONS * (long) PARTITION_BYTES);
    if (onRequest(after)) {
      assertEquals("part", after.usage().policy());
      await(context, "after", seen -> seen.chunkHugeBytes() > seen.chunkBytes() / 2);
    }
  }
}
