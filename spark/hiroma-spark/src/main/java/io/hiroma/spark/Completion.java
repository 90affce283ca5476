package io.hiroma.spark;

import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * What a configuration of Spark lacks for a policy. Only {@link Policy#ENTIRE} needs anything: the others take the JVM as it is, so that no
 * profile, environment or container can contradict them.
 *
 * @param additions what the driver can add by itself
 * @param missing sentences about what only the user can change, with the line that is wanted
 */
record Completion(Map<String, String> additions, List<String> missing) {
  static final String EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions";
  static final String DRIVER_OPTIONS = "spark.driver.extraJavaOptions";
  /** Alone: an option that has JVMs ignore what they do not know would hide mistakes in those of the user. */
  private static final String HUGE = "-XX:+UseTransparentHugePages";

  /**
   * Looks at {@code conf}.
   *
   * @param local whether executors run inside the driver, whose JVM is up already
   */
  static Completion of(Policy policy, Map<String, String> conf, boolean local) {
    String key = local ? DRIVER_OPTIONS : EXECUTOR_OPTIONS;
    String given = conf.getOrDefault(key, "").trim();
    if (policy != Policy.ENTIRE || Arrays.stream(given.split("\\s+")).anyMatch(option -> option.equals(HUGE))) {
      return new Completion(Map.of(), List.of());
    }
    if (given.contains("UseTransparentHugePages") || given.contains("UseLargePages")) {
      return new Completion(Map.of(), List.of(key + " sets huge pages otherwise; this policy wants -XX:+UseTransparentHugePages"));
    }
    if (local) {
      return new Completion(Map.of(),
          List.of("the driver's JVM is up already; start it with --driver-java-options -XX:+UseTransparentHugePages"));
    }
    return new Completion(Map.of(key, (given + " " + HUGE).trim()), List.of());
  }
}
