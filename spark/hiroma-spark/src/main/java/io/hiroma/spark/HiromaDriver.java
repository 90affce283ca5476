package io.hiroma.spark;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/** Keeps what executors report, for the web UI and metrics; for the policy entire it completes their options before the first one starts. */
final class HiromaDriver implements DriverPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HiromaDriver.class);
  private static final Map<String, History> HISTORIES = new ConcurrentHashMap<>();
  /** So many executors that are gone are remembered: what they had sent before may come later. */
  private static final int GONE_MAX = 1_000;
  /** Null unless the policy is auto. */
  private static volatile Trial trial;

  private MetricRegistry registry;
  private final Set<String> gone = Collections.newSetFromMap(new LinkedHashMap<String, Boolean>() {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
      return size() > GONE_MAX;
    }
  });
  /** What each executor asked last, and what all of them have together. */
  private final Map<String, Question> questions = new HashMap<>();
  private long cachedBytes;
  private long residentBytes;
  private Trial.Turn turn;

  HiromaDriver() {
    this(new MetricRegistry());
  }

  HiromaDriver(MetricRegistry registry) {
    this.registry = registry;
  }

  static Map<String, Usage> reports() {
    Map<String, Usage> reports = new HashMap<>();
    HISTORIES.forEach((executor, history) -> reports.put(executor, history.last()));
    return reports;
  }

  /** What the trial of the policy auto has found; "" with another policy. */
  static String told() {
    return trial == null ? "" : trial.told();
  }

  static Map<String, String> entries(SparkConf conf) {
    Map<String, String> entries = new HashMap<>();
    for (Tuple2<String, String> entry : conf.getAll()) {
      entries.put(entry._1(), entry._2());
    }
    return entries;
  }

  @Override
  public Map<String, String> init(SparkContext context, PluginContext plugin) {
    HISTORIES.clear();
    trial = null;
    Settings settings = Settings.of(entries(plugin.conf()));
    try {
      configure(plugin.conf(), settings);
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("hiroma: the configuration of the executors is left as it is: {}", error.toString());
    }
    registry = plugin.metricRegistry();
    Gauge<Integer> executors = HISTORIES::size;
    // Spark takes in a registry that holds something, and then also what it gets later.
    registry.register("executors", executors);
    context.addSparkListener(new Departures(this::removed));
    if (settings.policy() == Policy.AUTO) {
      begin(new Trial(settings.turnMillis(), settings.settleMillis()));
      context.addSparkListener(new Tasks(trial));
    }
    try {
      if (context.ui().isDefined()) {
        context.ui().get().attachTab(new HiromaTab(context.ui().get(), () -> new TreeMap<>(HISTORIES), trial));
      }
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("hiroma: this Spark's web UI takes no tab: {}", error.toString());
    }
    return Map.of();
  }

  /** Has the policy auto find out with {@code next}. */
  void begin(Trial next) {
    trial = next;
    Gauge<Double> gain = () -> next.gain().percent();
    registry.register("gainPercent", gain);
  }

  /** What the executor that asks is to do now. */
  private synchronized String answer(Question question) {
    if (gone.contains(question.executor())) {
      return Trial.Turn.WAIT.name();
    }
    long now = System.currentTimeMillis();
    Question before = questions.put(question.executor(), question);
    count(before, question);
    Trial.Turn next = trial.at(now, cachedBytes, question.busy());
    trial.spent(now, before == null ? 0 : question.spentMicros() - before.spentMicros());
    trial.resident(now, residentBytes);
    if (next != turn && next.decided()) {
      LOG.info("hiroma: auto: {}", trial.told());
    }
    turn = next;
    return next.name();
  }

  /** Keeps the sums: with thousands of executors, each question cannot add up all others. */
  private void count(Question before, Question after) {
    cachedBytes += (after == null ? 0 : after.cachedBytes()) - (before == null ? 0 : before.cachedBytes());
    residentBytes += (after == null ? 0 : after.residentBytes()) - (before == null ? 0 : before.residentBytes());
  }

  /** Forgets an executor: an application may have many thousand of them, one after the other. */
  synchronized void removed(String executor) {
    gone.add(executor);
    count(questions.remove(executor), null);
    if (HISTORIES.remove(executor) != null) {
      Usage.FIGURES.keySet().forEach(name -> registry.remove(figure(executor, name)));
    }
  }

  private static String figure(String executor, String name) {
    return MetricRegistry.name("executor", executor, name);
  }

  private static void configure(SparkConf conf, Settings settings) {
    settings.complaints().forEach(complaint -> LOG.warn("hiroma: {}", complaint));
    if (settings.policy() == Policy.ENTIRE && !System.getProperty("os.name", "").equals("Linux")) {
      // There JVMs do not know the option, and would not start.
      LOG.warn("hiroma: the policy entire needs Linux");
      return;
    }
    String master = conf.get("spark.master", "");
    boolean local = master.startsWith("local") && !master.startsWith("local-cluster");
    Completion completion = Completion.of(settings.policy(), entries(conf), local);
    completion.missing().forEach(sentence -> LOG.warn("hiroma: {}", sentence));
    completion.additions().forEach((key, value) -> {
      if (settings.configure()) {
        LOG.info("hiroma: {}={}", key, value);
        conf.set(key, value);
      } else {
        LOG.warn("hiroma: wanted: --conf {}=\"{}\" ({} is false)", key, value, Settings.CONFIGURE);
      }
    });
  }

  @Override
  public Object receive(Object message) {
    if (message instanceof Map<?, ?> map) {
      Question question = Question.of(map);
      if (question != null) {
        return trial == null ? Trial.Turn.WAIT.name() : answer(question);
      }
      take(Usage.of(map), String.valueOf(map.get(RegionMap.KEY)));
    }
    return null;
  }

  private synchronized void take(Usage usage, String map) {
    if (gone.contains(usage.executor())) {
      return;
    }
    History history = HISTORIES.computeIfAbsent(usage.executor(), this::begin);
    String before = history.last() == null ? "" : history.last().problem();
    history.add(usage, map, System.currentTimeMillis());
    if (!usage.problem().isEmpty() && !usage.problem().equals(before)) {
      LOG.warn("hiroma: executor {} has the pages that it would have without the plugin: {}", usage.executor(), usage.problem());
    }
  }

  /** Executors have no servlet that Prometheus could ask; their figures are in the driver's metrics, as old as the last report. */
  private History begin(String executor) {
    History history = new History();
    Usage.FIGURES.forEach((name, value) -> {
      Gauge<Long> gauge = () -> history.last() == null ? 0 : value.applyAsLong(history.last());
      registry.register(figure(executor, name), gauge);
    });
    return history;
  }
}
