package io.hiroma.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.function.ToLongFunction;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Carries out the policy in an executor. Whatever goes wrong, the executor goes on, with the pages that it would have had anyway. */
final class HiromaExecutor implements ExecutorPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HiromaExecutor.class);
  /** Metrics that are asked for at the same time come from one look at the pages. */
  private static final long USAGE_NANOS = 1_000_000_000L;
  private static final long PAUSE_MAX = 64;
  private static volatile HiromaExecutor current;

  private PluginContext context;
  private Settings settings;
  private volatile Policy inForce = Policy.OFF;
  private volatile HeapPages pages;
  private volatile boolean ended;
  private Thread thread;
  private Usage last;
  private long lastNanos;

  static HiromaExecutor current() {
    return current;
  }

  @Override
  public void init(PluginContext plugin, Map<String, String> extra) {
    context = plugin;
    settings = Settings.of(HiromaDriver.entries(plugin.conf()));
    try {
      begin();
    } catch (IOException | RuntimeException | LinkageError error) {
      inForce = Policy.OFF;
      LOG.warn("hiroma: {} is off in executor {}: {}", settings.policy().word(), plugin.executorID(), error.getMessage());
    }
    register(plugin.metricRegistry());
    current = this;
    thread = new Thread(this::run, "hiroma");
    thread.setDaemon(true);
    thread.start();
  }

  private void begin() throws IOException {
    SelfCheck.Facts facts = Jvm.facts(Completion.unrollBytes(HiromaDriver.entries(context.conf())));
    if (facts.g1() && facts.nativeProblem().isEmpty()) {
      pages = new HeapPages(facts.heapMax());
    }
    SelfCheck check = SelfCheck.of(settings.policy(), facts);
    if (!check.refusals().isEmpty()) {
      throw new IllegalStateException(String.join("; ", check.refusals()));
    }
    check.warnings().forEach(warning -> LOG.warn("hiroma: {}", warning));
    inForce = settings.policy();
    if (inForce == Policy.PART) {
      long advised = pages.adviseLow(Storage.maxBytes(), facts.thp().equals("always"));
      LOG.info("hiroma: part: the lowest {} MiB of the heap of executor {} are born huge", advised >> 20, context.executorID());
    } else {
      LOG.info("hiroma: {} in executor {}", inForce.word(), context.executorID());
    }
  }

  private void register(MetricRegistry registry) {
    gauge(registry, "cachedBytes", Usage::cachedBytes);
    gauge(registry, "cachedHugeBytes", Usage::cachedHugeBytes);
    gauge(registry, "otherHugeBytes", Usage::otherHugeBytes);
    gauge(registry, "adviceFailures", Usage::adviceFailures);
    gauge(registry, "collapseMicros", Usage::collapseMicros);
  }

  private void gauge(MetricRegistry registry, String name, ToLongFunction<Usage> value) {
    Gauge<Long> gauge = () -> value.applyAsLong(recentUsage());
    registry.register(name, gauge);
  }

  private synchronized Usage recentUsage() {
    if (last == null || System.nanoTime() - lastNanos > USAGE_NANOS) {
      last = usage();
      lastNanos = System.nanoTime();
    }
    return last;
  }

  /** Looks now. */
  Usage usage() {
    long cached = Storage.usedBytes();
    long resident = 0;
    long huge = 0;
    long staying = 0;
    try {
      List<Smaps.Mapping> mappings = Smaps.read();
      resident = mappings.stream().mapToLong(Smaps.Mapping::resident).sum();
      huge = mappings.stream().mapToLong(Smaps.Mapping::huge).sum();
      staying = pages == null ? 0 : SweepPlan.staying(pages.regions(), pages.huge());
    } catch (IOException | RuntimeException error) {
      LOG.debug("hiroma: the pages cannot be looked at", error);
    }
    long cachedHuge = Math.min(cached, Math.min(staying, huge));
    long failures = pages == null ? 0 : pages.failures();
    long collapseMicros = pages == null ? 0 : pages.collapseNanos() / 1_000;
    return new Usage(context.executorID(), inForce.word(), cached, cachedHuge, huge - cachedHuge, resident, failures, collapseMicros);
  }

  private void run() {
    long nextSweep = System.nanoTime();
    long nextReport = System.nanoTime();
    long pause = 1;
    while (!ended) {
      try {
        long now = System.nanoTime();
        if (sweeps() && now - nextSweep >= 0) {
          boolean served = inForce == Policy.PART ? pages.collapse(Storage.usedBytes(), settings.sweepPages())
              : pages.mark(Storage.usedBytes());
          pause = served ? 1 : Math.min(PAUSE_MAX, pause * 2);
          nextSweep = now + pause * settings.sweepMillis() * 1_000_000;
        }
        if (settings.reportMillis() > 0 && now - nextReport >= 0) {
          context.send(usage().message());
          nextReport = now + settings.reportMillis() * 1_000_000;
        }
        Thread.sleep(sweeps() ? Math.max(10, Math.min(settings.sweepMillis(), 200)) : 200);
      } catch (InterruptedException end) {
        return;
      } catch (IOException | RuntimeException | LinkageError error) {
        LOG.warn("hiroma: executor {} goes on as it is: {}", context.executorID(), error.toString());
        return;
      }
    }
  }

  private boolean sweeps() {
    return settings.sweepMillis() > 0 && (inForce == Policy.PART || inForce == Policy.PART_OLD);
  }

  @Override
  public void shutdown() {
    ended = true;
    current = null;
    if (thread != null) {
      thread.interrupt();
      try {
        thread.join(5_000);
      } catch (InterruptedException again) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
