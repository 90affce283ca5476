package io.hiroma.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import io.hiroma.jvm.JavaHeap;
import io.hiroma.jvm.Natives;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Carries out the policy in an executor. Whatever goes wrong, the executor goes on, with the pages that it would have had anyway. */
final class HiromaExecutor implements ExecutorPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HiromaExecutor.class);
  /** Metrics that are asked for at the same time come from one look at the pages. */
  private static final long USAGE_NANOS = 1_000_000_000L;
  /** Between two looks at whether anything has changed. */
  private static final long TICK_MILLIS = 100;
  /** Between two sweeps while nothing changes: the kernel may have taken huge pages apart. */
  private static final long IDLE_MILLIS = 15_000;
  /** So many times as long as a look for cached data took, there is none; and while something is to be given back. */
  private static final long REST = 50;
  private static final long REST_SHRUNK = 10;
  /** The collector changes what is being read: one error is none, but so many in a row say that this JVM is not as expected. */
  private static final int ERRORS_MAX = 10;
  /** What Spark calls the executor that is inside the driver ({@code SparkContext.DRIVER_IDENTIFIER}). */
  private static final String DRIVER = "driver";
  private static volatile HiromaExecutor current;

  private PluginContext context;
  private Settings settings;
  private volatile Policy inForce = Policy.OFF;
  private volatile String problem = "";
  private volatile Heap heap;
  private volatile CachedData data;
  private volatile HugeData pages;
  /** What the driver's trial wants, and what is done; only for the policy auto. */
  private volatile Trial.Turn wanted = Trial.Turn.WAIT;
  private volatile Trial.Turn turn = Trial.Turn.WAIT;
  /** Bytes of Spark's own chunks while others are used; negative while they are not. */
  private long chunksBefore = -1;
  private long nextReport = System.nanoTime();
  private volatile boolean ended;
  private final Sweeps sweeps = new Sweeps();
  private Thread thread;
  private Thread asking;
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
    } catch (RuntimeException | Error error) {
      inForce = Policy.OFF;
      problem = String.valueOf(error.getMessage());
      LOG.warn("hiroma: {} is off in executor {}: {}", settings.policy().word(), plugin.executorID(), problem);
    }
    register(plugin.metricRegistry());
    current = this;
    thread = start("hiroma", this::run);
    if (inForce == Policy.AUTO) {
      asking = start("hiroma-ask", this::ask);
    }
  }

  private static Thread start(String name, Runnable work) {
    Thread started = new Thread(work, name);
    started.setDaemon(true);
    // Spark's handler of what nobody catches ends the executor.
    started.setUncaughtExceptionHandler((dead, error) -> LOG.warn("hiroma: the thread {} has ended: {}", name, error.toString()));
    started.start();
    return started;
  }

  private void begin() {
    SelfCheck.Facts facts = Jvm.facts();
    SelfCheck check = SelfCheck.of(settings.policy(), facts);
    if (facts.nativeProblem().isEmpty()) {
      List<String> hidden = new ArrayList<>();
      heap = facts.collector() == Jvm.Collector.OTHER ? null : heap(Native::heap, hidden::add);
      data = new CachedData(heap);
      pages = new HugeData(heap, data, new Budget(settings.cpuPercent(), System.nanoTime()));
      check = check.and(settings.policy(), hidden);
    }
    if (!check.refusals().isEmpty()) {
      throw new IllegalStateException(String.join("; ", check.refusals()));
    }
    check.warnings().forEach(warning -> LOG.warn("hiroma: {}", warning));
    if (!Natives.note().isEmpty()) {
      LOG.warn("hiroma: {}", Natives.note());
    }
    inForce = settings.policy();
    if (places() && facts.collector() == Jvm.Collector.G1 && heap != null) {
      fitChunks();
    }
    LOG.info("hiroma: {} in executor {} (native calls: {})", inForce.word(), context.executorID(), Natives.way());
  }

  /** The heap, or null and why it cannot be read here: blocks off it are looked after all the same. */
  static Heap heap(Supplier<JavaHeap> find, Consumer<String> why) {
    try {
      return new Heap(find.get());
    } catch (RuntimeException | LinkageError hidden) {
      why.accept(String.valueOf(hidden.getMessage()));
      return null;
    }
  }

  private boolean places() {
    return inForce == Policy.PART || inForce == Policy.AUTO || inForce == Policy.PART_OLD;
  }

  /** Whether looks are taken that decide what becomes huge. */
  private boolean sweeping() {
    return settings.sweepMillis() > 0 && places() && turn.huge();
  }

  /** Unless the user has chosen a size. */
  private void fitChunks() {
    if (!settings.fitChunks() || context.conf().contains(Chunks.KEY)) {
      return;
    }
    try {
      chunksBefore = Chunks.use(Chunks.fitting(Native.heap().regionBytes()));
    } catch (ReflectiveOperationException | RuntimeException other) {
      LOG.debug("hiroma: chunks of serialised data keep their size", other);
    }
  }

  /** Chunks have Spark's own size again: the policy has no use for another one any more. */
  private void restoreChunks() throws ReflectiveOperationException {
    if (chunksBefore > 0) {
      Chunks.use(chunksBefore);
      chunksBefore = -1;
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

  /** Now, or as the last look saw it. */
  Usage usage() {
    long cached = 0;
    long resident = 0;
    long huge = 0;
    long cachedHuge = 0;
    try {
      Smaps.Mapping all = Smaps.sum();
      resident = all.resident();
      huge = all.huge();
      if (data == null) {
        cached = CachedData.blocks().bytes();
      } else {
        CachedData.Look look = sweeping() ? data.latest() : data.look();
        CachedPages found = look.whole();
        cached = look.bytes();
        cachedHuge = Math.min(Math.min(cached, huge), found.total(found.huge(Kernel.REAL))[1]);
      }
    } catch (IOException | ReflectiveOperationException | RuntimeException error) {
      LOG.debug("hiroma: the pages cannot be looked at", error);
    }
    long failures = pages == null ? 0 : pages.failures();
    long collapseMicros = pages == null ? 0 : pages.collapseNanos() / 1_000;
    return new Usage(context.executorID(), inForce.word(), cached, cachedHuge, huge - cachedHuge, resident, failures,
        collapseMicros, pages == null ? 0 : pages.returnedBytes(), problem, Natives.way());
  }

  private Object report() {
    LinkedHashMap<String, String> message = usage().message();
    message.put(RegionMap.KEY, map());
    return message;
  }

  private String map() {
    try {
      return heap == null ? "" : heap.map();
    } catch (RuntimeException hidden) {
      LOG.debug("hiroma: the heap cannot be drawn", hidden);
      return "";
    }
  }

  private void run() {
    int errors = 0;
    while (!ended) {
      try {
        Thread.sleep(TICK_MILLIS);
        tick();
        errors = 0;
      } catch (InterruptedException end) {
        return;
      } catch (Throwable error) {
        // Errors of the JVM too: the executor has tasks to end.
        errors++;
        LOG.debug("hiroma: once more", error);
        if (errors >= ERRORS_MAX && !ended && inForce != Policy.OFF) {
          giveUp(error);
        }
      }
    }
  }

  private void tick() throws ReflectiveOperationException {
    follow();
    if (sweeping()) {
      sweeps.tick(System.nanoTime());
    }
    long now = System.nanoTime();
    if (settings.reportMillis() > 0 && now - nextReport >= 0) {
      nextReport = now + settings.reportMillis() * 1_000_000;
      send(report());
    }
  }

  /** A driver that is not there, or not yet, is no reason to give up. */
  private void send(Object message) {
    try {
      context.send(message);
    } catch (IOException | RuntimeException notSent) {
      LOG.debug("hiroma: a report was not sent", notSent);
    }
  }

  /** From now on it only reports. */
  private void giveUp(Throwable error) {
    LOG.warn("hiroma: executor {} goes on as it is: {}", context.executorID(), error.toString());
    inForce = Policy.OFF;
    problem = error.toString();
    try {
      if (pages != null) {
        pages.returnAll();
      }
      restoreChunks();
    } catch (ReflectiveOperationException | RuntimeException | LinkageError left) {
      LOG.debug("hiroma: not everything is as it was", left);
    }
  }

  /** Asks the driver whose turn it is, on a thread of its own: an answer may take as long as the network has time. */
  private void ask() {
    while (!ended && inForce == Policy.AUTO) {
      try {
        Thread.sleep(Question.againMillis(wanted));
        wanted = Trial.Turn.valueOf(String.valueOf(context.ask(sweeps.question(context.executorID()).message())));
      } catch (InterruptedException end) {
        return;
      } catch (Throwable noAnswer) {
        // A driver that is busy, or leaving: as before then.
        LOG.debug("hiroma: the driver does not answer", noAnswer);
      }
    }
  }

  /** Does what the driver wants. */
  private void follow() throws ReflectiveOperationException {
    Trial.Turn next = wanted;
    if (next == turn) {
      return;
    }
    if (turn.huge() && !next.huge()) {
      pages.returnAll();
    } else if (next == Trial.Turn.WITH || !turn.huge()) {
      sweeps.again();
    }
    turn = next;
    if (next == Trial.Turn.LEAVE) {
      restoreChunks();
    }
  }

  /**
   * When to look for cached data: soon after something was stored or dropped; after collections, which move it, the rarer the longer there
   * was nothing to do.
   */
  private final class Sweeps {
    private long lastNanos = System.nanoTime();
    private long waitNanos;
    /** What is waited for after a round in which there was nothing to do, or the kernel did nothing. */
    private long idleNanos;
    private long tookNanos;
    private long used;
    private volatile CachedData.Blocks blocks = new CachedData.Blocks(0, 0);
    private long collections;
    private boolean pending;
    private boolean refused;
    /** Something was dropped that is to be given back soon. */
    private boolean shrunk;
    /** A turn with huge pages has begun, and what was cached before does not have them yet. */
    private volatile boolean placing;
    private volatile long spentNanos;

    Question question(String executor) throws IOException {
      return new Question(executor, blocks.bytes(), placing, spentNanos / 1_000, Smaps.residentBytes());
    }

    /** Everything is to be looked at again. */
    void again() {
      placing = true;
      waitNanos = 0;
      idleNanos = 0;
      pending = true;
    }

    void tick(long now) throws ReflectiveOperationException {
      long least = settings.sweepMillis() * 1_000_000;
      seeBlocks(least);
      long collectionsNow = Jvm.collections();
      long since = now - lastNanos;
      boolean due = pending || refused || collectionsNow != collections || since >= IDLE_MILLIS * 1_000_000;
      if (!due || since < Math.max(waitNanos, (shrunk ? REST_SHRUNK : REST) * tookNanos)) {
        return;
      }
      collections = collectionsNow;
      // Until it has ended well.
      pending = true;
      long collapsing = pages.collapseNanos();
      long returned = pages.returnedBytes();
      HugeData.Outcome outcome = inForce == Policy.PART_OLD ? pages.mark() : pages.place();
      // Collapsing has a budget of its own.
      tookNanos = System.nanoTime() - now - (pages.collapseNanos() - collapsing);
      boolean vain = outcome == HugeData.Outcome.REFUSED || pages.collapseNanos() == collapsing && pages.returnedBytes() == returned;
      ended(outcome, vain, least);
      placing &= !pages.placed();
      lastNanos = System.nanoTime();
      spentNanos += lastNanos - now;
    }

    private void seeBlocks(long least) throws ReflectiveOperationException {
      long usedNow = Storage.usedBytes();
      if (usedNow == used) {
        return;
      }
      used = usedNow;
      CachedData.Blocks found = CachedData.blocks();
      if (!found.equals(blocks)) {
        shrunk |= found.bytes() < blocks.bytes();
        blocks = found;
        waitNanos = Math.min(waitNanos, least);
        pending = true;
      }
    }

    private void ended(HugeData.Outcome outcome, boolean vain, long least) {
      pending = outcome == HugeData.Outcome.MORE;
      refused = outcome == HugeData.Outcome.REFUSED;
      shrunk &= pending;
      if (!vain) {
        idleNanos = 0;
      } else if (!pending) {
        idleNanos = Math.min(IDLE_MILLIS * 1_000_000, Math.max(least, idleNanos * 2));
      }
      waitNanos = pending ? least : Math.max(least, idleNanos);
    }
  }

  @Override
  public void shutdown() {
    ended = true;
    current = null;
    if (asking != null) {
      asking.interrupt();
    }
    if (thread != null) {
      thread.interrupt();
      try {
        thread.join(5_000);
      } catch (InterruptedException again) {
        Thread.currentThread().interrupt();
      }
    }
    // In local mode the JVM may go on without what was cached; others end now.
    if (pages != null && context.executorID().equals(DRIVER)) {
      pages.returnAll();
    }
  }
}
