package io.hiroma.spark;

import java.util.Map;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/** For {@code spark.plugins}: Spark's cached data, and nothing else, on huge pages. See {@code docs/guide/spark.md}. */
public final class HiromaPlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return new HiromaDriver();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new HiromaExecutor();
  }

  /** In the driver: what each executor reported last ({@code spark.hiroma.report.millis}), by its name. */
  public static Map<String, Usage> reports() {
    return HiromaDriver.reports();
  }

  /** In the driver: what the policy auto has measured so far, in one sentence; "" with another policy. */
  public static String gain() {
    return HiromaDriver.told();
  }
}
