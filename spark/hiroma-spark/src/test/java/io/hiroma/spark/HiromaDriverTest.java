package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.codahale.metrics.MetricRegistry;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** What executors send, and nobody else. */
class HiromaDriverTest {
  private static final long MIB = 1L << 20;

  private final MetricRegistry registry = new MetricRegistry();
  private final HiromaDriver driver = new HiromaDriver(registry);
  private final Departures departures = new Departures(driver::removed);

  private static LinkedHashMap<String, String> report(String executor) {
    return new Usage(executor, "part", MIB, 0, 0, MIB, 0, 0, 0, "", "JNI").message();
  }

  private void leaves(String executor) {
    departures.onExecutorRemoved(new SparkListenerExecutorRemoved(0, executor, "idle"));
  }

  @AfterEach
  void forget() {
    HiromaDriver.reports().keySet().forEach(driver::removed);
  }

  @Test
  void executorsThatAreGoneAreForgotten() {
    for (int number = 0; number < 3_000; number++) {
      String executor = "" + number;
      driver.receive(report(executor));
      assertEquals(1, HiromaDriver.reports().size());
      assertFalse(registry.getGauges().isEmpty());
      leaves(executor);
      // What was on its way.
      assertNull(driver.receive(report(executor)));
      assertTrue(HiromaDriver.reports().isEmpty());
      assertTrue(registry.getGauges().isEmpty());
    }
    driver.receive(report("another"));
    assertEquals(Map.of("another", Usage.of(report("another"))), HiromaDriver.reports());
  }

  @Test
  void aTrialBeginsWhenAllExecutorsTogetherHaveEnough() {
    driver.begin(new Trial(10_000, 1_000));
    assertEquals("WAIT", driver.receive(new Question("1", Trial.LEAST_BYTES / 2, false, 0, MIB).message()));
    assertEquals("WAIT", driver.receive(new Question("1", Trial.LEAST_BYTES / 2, false, 0, MIB).message()));
    leaves("1");
    assertEquals("WAIT", driver.receive(new Question("2", Trial.LEAST_BYTES / 2, false, 0, MIB).message()));
    // Too late.
    assertEquals("WAIT", driver.receive(new Question("1", Trial.LEAST_BYTES / 2, false, 0, MIB).message()));
    assertEquals("WITH", driver.receive(new Question("3", Trial.LEAST_BYTES / 2, false, 0, MIB).message()));
    assertEquals("measuring", HiromaDriver.told());
  }
}
