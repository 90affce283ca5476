package io.hiroma.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.ToLongFunction;

/**
 * Where the memory of an executor is.
 *
 * @param executor its name, as Spark shows it
 * @param policy the policy in force: off if the one that was asked for cannot work here
 * @param cachedBytes what blocks of RDDs and tables have in memory, as Spark counts them
 * @param cachedHugeBytes how much of that is on huge pages: exact for serialised data and large arrays, by sample for small objects
 * @param otherHugeBytes everything else of the process that is on huge pages
 * @param residentBytes memory of the process
 * @param adviceFailures how often the kernel refused an advice
 * @param collapseMicros time spent in making pages huge after they were touched
 * @param returnedBytes what was on huge pages for cached data and is on small ones again
 * @param problem why the policy that was asked for cannot work here; "" if it does
 * @param nativeCalls how the plugin calls the system: java.lang.foreign, JNI or none
 */
public record Usage(String executor, String policy, long cachedBytes, long cachedHugeBytes, long otherHugeBytes, long residentBytes,
    long adviceFailures, long collapseMicros, long returnedBytes, String problem, String nativeCalls) {

  /** What is shown as metrics, by name. */
  static final Map<String, ToLongFunction<Usage>> FIGURES = Map.of("cachedBytes", Usage::cachedBytes, "cachedHugeBytes",
      Usage::cachedHugeBytes, "otherHugeBytes", Usage::otherHugeBytes, "adviceFailures", Usage::adviceFailures, "collapseMicros",
      Usage::collapseMicros, "returnedBytes", Usage::returnedBytes);

  /** As a message for the driver: of the JDK's own types, which every class loader knows. */
  LinkedHashMap<String, String> message() {
    LinkedHashMap<String, String> message = new LinkedHashMap<>();
    message.put("executor", executor);
    message.put("policy", policy);
    message.put("cachedBytes", Long.toString(cachedBytes));
    message.put("cachedHugeBytes", Long.toString(cachedHugeBytes));
    message.put("otherHugeBytes", Long.toString(otherHugeBytes));
    message.put("residentBytes", Long.toString(residentBytes));
    message.put("adviceFailures", Long.toString(adviceFailures));
    message.put("collapseMicros", Long.toString(collapseMicros));
    message.put("returnedBytes", Long.toString(returnedBytes));
    message.put("problem", problem);
    message.put("nativeCalls", nativeCalls);
    return message;
  }

  /** Reads a message of {@link #message}. */
  static Usage of(Map<?, ?> message) {
    return new Usage(String.valueOf(message.get("executor")), String.valueOf(message.get("policy")), number(message, "cachedBytes"),
        number(message, "cachedHugeBytes"), number(message, "otherHugeBytes"), number(message, "residentBytes"),
        number(message, "adviceFailures"), number(message, "collapseMicros"), number(message, "returnedBytes"), String.valueOf(message.get("problem")),
        String.valueOf(message.get("nativeCalls")));
  }

  private static long number(Map<?, ?> message, String key) {
    return Long.parseLong(String.valueOf(message.get(key)));
  }

  /** The usage of the executor that this is called in, now; in the driver of a cluster, and without the plugin, null. */
  public static Usage here() {
    HiromaExecutor executor = HiromaExecutor.current();
    return executor == null ? null : executor.usage();
  }
}
