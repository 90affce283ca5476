package io.hiroma.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import io.hiroma.jvm.Natives;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Carries out the policy in an executor. Whatever goes wrong, the executor goes on, with the pages that it would have had anyway. */
final class HiromaExecutor implements ExecutorPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HiromaExecutor.class);
  /** Metrics that are asked for at the same time come from one look at the pages. */
  private static final long USAGE_NANOS = 1_000_000_000L;
  /** Looks become rarer up to this factor while there is nothing to do, or nothing to be had. */
  private static final long PAUSE_MAX = 16;
  /** Between two looks at how much is cached; a core fills some MiB in that time. */
  private static final long TICK_MILLIS = 10;
  /** Between two looks for what is not huge while data is being cached. */
  private static final long BUSY_MILLIS = 200;
  private static volatile HiromaExecutor current;

  private PluginContext context;
  private Settings settings;
  private volatile Policy inForce = Policy.OFF;
  private volatile String problem = "";
  private volatile HeapPages pages;
  private volatile CachedData data;
  private Promotion promotion;
  private int blocks;
  private int storedBefore;
  private long usedBefore;
  private long unrollBytes;
  private long advisedFor;
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
      problem = String.valueOf(error.getMessage());
      LOG.warn("hiroma: {} is off in executor {}: {}", settings.policy().word(), plugin.executorID(), problem);
    }
    register(plugin.metricRegistry());
    current = this;
    thread = new Thread(this::run, "hiroma");
    thread.setDaemon(true);
    thread.start();
  }

  private void begin() throws IOException {
    unrollBytes = Completion.unrollBytes(HiromaDriver.entries(context.conf()));
    SelfCheck.Facts facts = Jvm.facts(unrollBytes);
    if (facts.nativeProblem().isEmpty()) {
      pages = facts.g1() ? new HeapPages(facts.heapMax()) : null;
      data = new CachedData(facts.g1());
    }
    SelfCheck check = SelfCheck.of(settings.policy(), facts);
    if (!check.refusals().isEmpty()) {
      throw new IllegalStateException(String.join("; ", check.refusals()));
    }
    check.warnings().forEach(warning -> LOG.warn("hiroma: {}", warning));
    if (!Natives.note().isEmpty()) {
      LOG.warn("hiroma: {}", Natives.note());
    }
    inForce = settings.policy();
    if (inForce == Policy.PART) {
      boolean all = settings.aheadBytes() == 0;
      pages.adviseAhead(all ? Storage.maxBytes() : CachedPages.HUGE_PAGE, 0, Storage.maxBytes(), facts.thp().equals("always"));
      promotion = settings.promote() && Jvm.collectsConcurrently() ? new Promotion() : null;
      LOG.info("hiroma: part: what executor {} caches in the lowest {} MiB of the free heap is born huge (native calls: {})",
          context.executorID(), Storage.maxBytes() >> 20, Natives.way());
    } else {
      LOG.info("hiroma: {} in executor {} (native calls: {})", inForce.word(), context.executorID(), Natives.way());
    }
  }

  private void register(MetricRegistry registry) {
    Usage.FIGURES.forEach((name, value) -> {
      Gauge<Long> gauge = () -> value.applyAsLong(recentUsage());
      registry.register(name, gauge);
    });
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
    long cachedHuge = 0;
    try {
      List<Smaps.Mapping> mappings = Smaps.read();
      resident = mappings.stream().mapToLong(Smaps.Mapping::resident).sum();
      huge = mappings.stream().mapToLong(Smaps.Mapping::huge).sum();
      if (data != null) {
        CachedPages found = data.look();
        cachedHuge = Math.min(Math.min(cached, huge), found.total(found.huge())[1]);
      }
    } catch (IOException | ReflectiveOperationException | RuntimeException error) {
      LOG.debug("hiroma: the pages cannot be looked at", error);
    }
    long failures = pages == null ? 0 : pages.failures();
    long collapseMicros = pages == null ? 0 : pages.collapseNanos() / 1_000;
    return new Usage(context.executorID(), inForce.word(), cached, cachedHuge, huge - cachedHuge, resident, failures,
        collapseMicros, problem, Natives.way());
  }

  private Object report() {
    LinkedHashMap<String, String> message = usage().message();
    message.put(RegionMap.KEY, pages == null ? "" : pages.map());
    return message;
  }

  private void run() {
    long nextSweep = System.nanoTime();
    long nextReport = System.nanoTime();
    long pause = 1;
    long before = 0;
    while (!ended) {
      try {
        long used = Storage.usedBytes();
        advise(used);
        long now = System.nanoTime();
        promote(used, now);
        boolean busy = used != before;
        if (sweeps() && (now - nextSweep >= 0 || busy && nextSweep - now > BUSY_MILLIS * 1_000_000)) {
          pause = sweep() || busy ? 1 : Math.min(PAUSE_MAX, pause * 2);
          before = used;
          nextSweep = System.nanoTime() + (busy ? Math.min(BUSY_MILLIS, settings.sweepMillis()) : pause * settings.sweepMillis()) * 1_000_000;
        }
        if (settings.reportMillis() > 0 && now - nextReport >= 0) {
          context.send(report());
          nextReport = now + settings.reportMillis() * 1_000_000;
        }
        Thread.sleep(inForce == Policy.PART ? TICK_MILLIS : BUSY_MILLIS);
      } catch (InterruptedException end) {
        return;
      } catch (IOException | ReflectiveOperationException | RuntimeException | LinkageError error) {
        LOG.warn("hiroma: executor {} goes on as it is: {}", context.executorID(), error.toString());
        if (inForce == Policy.OFF) {
          return;
        }
        // From now on it only reports.
        inForce = Policy.OFF;
        problem = error.toString();
      }
    }
  }

  /** Keeps free regions advised on ahead of what is cached; one block that is being stored may still be no cached data but a broadcast. */
  private void advise(long used) throws IOException {
    long ahead = settings.aheadBytes();
    if (inForce == Policy.PART && ahead > 0 && used > unrollBytes + advisedFor) {
      pages.adviseAhead(ahead, Storage.usedOnHeapBytes(), Storage.maxBytes(), false);
      advisedFor = used + ahead / 4;
    }
  }

  /** Has young cached data moved to where it is born huge, as soon as a block is whole. */
  private void promote(long used, long now) throws IOException, ReflectiveOperationException {
    if (inForce != Policy.PART || promotion == null) {
      return;
    }
    int stored = CachedData.stored();
    if (stored != storedBefore || used != usedBefore) {
      blocks = CachedData.blocks();
      storedBefore = stored;
      usedBefore = used;
    }
    if (!promotion.due(blocks, now)) {
      return;
    }
    CachedPages cached = data.look();
    long young = cached.total(pages.young())[1];
    if (promotion.worthwhile(young, cached.total(new Runs())[0])) {
      if (settings.aheadBytes() > 0) {
        pages.adviseAhead(settings.aheadBytes(), Storage.usedOnHeapBytes(), Storage.maxBytes(), false);
      }
      promotion.begin();
    }
  }

  /** Puts cached data on huge pages that is not there; whether there was some, and the kernel had pages for it. */
  private boolean sweep() throws ReflectiveOperationException {
    CachedPages cached = data.look();
    List<Long> chosen = cached.worthwhile(cached.huge(), inForce == Policy.PART ? settings.sweepPages() : Integer.MAX_VALUE);
    return !chosen.isEmpty() && (inForce == Policy.PART ? pages.collapse(chosen) : pages.mark(chosen));
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
