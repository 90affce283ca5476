package io.hiroma.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/** Completes what executors need before the first one starts, and keeps what they report. */
final class HiromaDriver implements DriverPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HiromaDriver.class);
  private static final Map<String, Usage> REPORTS = new ConcurrentHashMap<>();

  static Map<String, Usage> reports() {
    return Map.copyOf(REPORTS);
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
    REPORTS.clear();
    try {
      configure(plugin.conf());
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("hiroma: the configuration of the executors is left as it is: {}", error.toString());
    }
    return Map.of();
  }

  private static void configure(SparkConf conf) {
    Map<String, String> entries = entries(conf);
    Settings settings = Settings.of(entries);
    settings.complaints().forEach(complaint -> LOG.warn("hiroma: {}", complaint));
    String master = conf.get("spark.master", "");
    boolean local = master.startsWith("local") && !master.startsWith("local-cluster");
    long heap = local ? Jvm.heapMax() : conf.getSizeAsMb("spark.executor.memory", "1g") << 20;
    Completion completion = Completion.of(settings.policy(), entries, local, heap);
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
    if (message instanceof Map<?, ?> report) {
      Usage usage = Usage.of(report);
      Usage before = REPORTS.put(usage.executor(), usage);
      if (!usage.problem().isEmpty() && (before == null || !before.problem().equals(usage.problem()))) {
        LOG.warn("hiroma: executor {} has the pages that it would have without the plugin: {}", usage.executor(), usage.problem());
      }
    }
    return null;
  }
}
