package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.codahale.metrics.MetricRegistry;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.SparkConf;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.resource.ResourceInformation;
import org.junit.jupiter.api.Test;

/** An executor's plugin in this JVM, with a driver that is not as it should be. */
class HiromaExecutorTest {
  private static final int REPORTS = 15;

  /** Every report ends as {@code fails} says. */
  private static final class Context implements PluginContext {
    private final SparkConf conf;
    private final Runnable fails;
    private final MetricRegistry registry = new MetricRegistry();
    private final AtomicInteger reports = new AtomicInteger();

    Context(SparkConf conf, Runnable fails) {
      this.conf = conf;
      this.fails = fails;
    }

    @Override
    public MetricRegistry metricRegistry() {
      return registry;
    }

    @Override
    public SparkConf conf() {
      return conf;
    }

    @Override
    public String executorID() {
      return "driver";
    }

    @Override
    public String hostname() {
      return "localhost";
    }

    @Override
    public Map<String, ResourceInformation> resources() {
      return Map.of();
    }

    @Override
    public void send(Object message) {
      reports.incrementAndGet();
      fails.run();
    }

    @Override
    public Object ask(Object message) {
      throw new IllegalStateException("no driver");
    }
  }

  /** The policy at the start and after some reports that failed, and that no thread died. */
  private static List<String> policies(Policy policy, Runnable fails) throws InterruptedException {
    SparkConf conf = new SparkConf(false).set("spark.hiroma.policy", policy.word()).set("spark.hiroma.report.millis", "100");
    Context context = new Context(conf, fails);
    HiromaExecutor executor = new HiromaExecutor();
    AtomicReference<Throwable> uncaught = new AtomicReference<>();
    Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
    Thread.setDefaultUncaughtExceptionHandler((thread, error) -> uncaught.set(error));
    try {
      executor.init(context, Map.of());
      List<String> found = new ArrayList<>(List.of(executor.usage().policy()));
      long began = System.nanoTime();
      while (context.reports.get() < REPORTS) {
        Thread.sleep(50);
        assertTrue(System.nanoTime() - began < TimeUnit.SECONDS.toNanos(60), () -> context.reports + " reports");
      }
      found.add(executor.usage().policy());
      assertNull(uncaught.get());
      return found;
    } finally {
      executor.shutdown();
      Thread.setDefaultUncaughtExceptionHandler(before);
    }
  }

  @Test
  void reportsThatCannotBeSentChangeNothing() throws InterruptedException {
    for (Policy policy : List.of(Policy.PART, Policy.AUTO, Policy.ENTIRE)) {
      List<String> found = policies(policy, () -> {
        throw new IllegalStateException("no endpoint");
      });
      assertEquals(found.get(0), found.get(1));
    }
  }

  @Test
  void errorsOfTheJvmEndNoThread() throws InterruptedException {
    for (Policy policy : List.of(Policy.OFF, Policy.PART)) {
      policies(policy, () -> {
        throw new StackOverflowError();
      });
    }
  }

  @Test
  void aHeapThatCannotBeReadIsNoReasonToLeaveTheRestAlone() {
    List<String> why = new ArrayList<>();
    assertNull(HiromaExecutor.heap(() -> {
      throw new IllegalStateException("no /proc/self/mem");
    }, why::add));
    assertEquals(List.of("no /proc/self/mem"), why);
    SelfCheck check = SelfCheck.of(Policy.PART, new SelfCheck.Facts(Jvm.Collector.G1, false, "madvise", ""));
    assertTrue(check.and(Policy.PART, why).refusals().isEmpty());
    assertTrue(check.and(Policy.PART, why).warnings().get(0).endsWith("only blocks off the heap get huge pages: no /proc/self/mem"));
    assertTrue(check.and(Policy.OFF, why).warnings().isEmpty());
    assertNotNull(HiromaExecutor.heap(Native::heap, why::add));
  }
}
