package io.hiroma.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The user's {@code spark.hiroma.*}, checked. What cannot be understood is told in {@link #complaints} and counts as not said: a typing
 * error never ends a job.
 *
 * @param policy which memory is put on huge pages
 * @param configure whether the driver completes the options of executors where a policy needs some
 * @param sweepMillis time between two looks for cached data that is not on huge pages; 0: never
 * @param cpuPercent of one processor's time, what making huge pages may take
 * @param fitChunks whether chunks of serialised data are made to fit the regions of G1
 * @param turnMillis how long a turn with or without huge pages lasts, where their gain is measured
 * @param reportMillis time between two reports of an executor to the driver; 0: never
 * @param complaints sentences for the user
 */
record Settings(Policy policy, boolean configure, long sweepMillis, int cpuPercent, boolean fitChunks, long turnMillis,
    long reportMillis, List<String> complaints) {
  static final String PREFIX = "spark.hiroma.";
  static final String POLICY = PREFIX + "policy";
  static final String CONFIGURE = PREFIX + "configure";
  static final String SWEEP_MILLIS = PREFIX + "sweep.millis";
  static final String CPU_PERCENT = PREFIX + "cpu.percent";
  static final String FIT_CHUNKS = PREFIX + "fit.chunks";
  static final String TURN_MILLIS = PREFIX + "turn.millis";
  static final String REPORT_MILLIS = PREFIX + "report.millis";
  private static final List<String> KNOWN = List.of(POLICY, CONFIGURE, SWEEP_MILLIS, CPU_PERCENT, FIT_CHUNKS, TURN_MILLIS, REPORT_MILLIS);
  private static final long HOUR_MILLIS = 3_600_000;
  private static final long SWEEP_MILLIS_DEFAULT = 200;
  /** Shorter turns would be over before every executor knows of them. */
  private static final long TURN_MILLIS_MIN = 2_000;
  private static final long REPORT_MILLIS_MIN = 100;
  /** For what executors do between the answer and the first page. */
  private static final long ANSWER_MILLIS = 200;

  /** Reads those entries of a Spark configuration that are ours. */
  static Settings of(Map<String, String> conf) {
    List<String> complaints = new ArrayList<>();
    Map<String, String> ours = new TreeMap<>();
    conf.forEach((key, value) -> {
      if (KNOWN.contains(key)) {
        ours.put(key, value.trim());
      } else if (key.startsWith(PREFIX)) {
        complaints.add("there is no " + key + "; did you mean " + nearest(key) + "?");
      }
    });
    String word = ours.getOrDefault(POLICY, Policy.PART.word());
    Policy policy = Policy.of(word).orElseGet(() -> {
      complaints.add(POLICY + " is off, entire, part, auto or part-old, not \"" + word + "\"; off is used");
      return Policy.OFF;
    });
    long sweepMillis = number(ours, SWEEP_MILLIS, SWEEP_MILLIS_DEFAULT, 0, HOUR_MILLIS, complaints);
    if (policy == Policy.AUTO && sweepMillis == 0) {
      complaints.add(SWEEP_MILLIS + " is 0, and so there is nothing for the policy auto to compare; " + SWEEP_MILLIS_DEFAULT + " is used");
      sweepMillis = SWEEP_MILLIS_DEFAULT;
    }
    long reportMillis = "0".equals(ours.get(REPORT_MILLIS)) ? 0
        : number(ours, REPORT_MILLIS, 10_000, REPORT_MILLIS_MIN, HOUR_MILLIS, complaints);
    return new Settings(policy, truth(ours, CONFIGURE, complaints), sweepMillis, (int) number(ours, CPU_PERCENT, 10, 0, 100, complaints),
        truth(ours, FIT_CHUNKS, complaints), number(ours, TURN_MILLIS, 10_000, TURN_MILLIS_MIN, HOUR_MILLIS, complaints), reportMillis,
        List.copyOf(complaints));
  }

  /** The part of a turn in which tasks do not count: executors ask, and then make pages huge or small. */
  long settleMillis() {
    return Math.max(turnMillis / 10, Question.EVERY_MILLIS + ANSWER_MILLIS);
  }

  private static boolean truth(Map<String, String> ours, String key, List<String> complaints) {
    String word = ours.getOrDefault(key, "true");
    if (!word.equalsIgnoreCase("true") && !word.equalsIgnoreCase("false")) {
      complaints.add(key + " is true or false, not \"" + word + "\"; true is used");
      return true;
    }
    return word.equalsIgnoreCase("true");
  }

  private static long number(Map<String, String> ours, String key, long otherwise, long least, long most, List<String> complaints) {
    String word = ours.get(key);
    if (word == null) {
      return otherwise;
    }
    try {
      long value = Long.parseLong(word);
      if (value >= least && value <= most) {
        return value;
      }
    } catch (NumberFormatException notANumber) {
      // Told below, together with what is out of range.
    }
    complaints.add(key + " is a number from " + least + " to " + most + ", not \"" + word + "\"; " + otherwise + " is used");
    return otherwise;
  }

  private static String nearest(String key) {
    String best = POLICY;
    int least = Integer.MAX_VALUE;
    for (String known : KNOWN) {
      int distance = distance(known, key);
      if (distance < least) {
        least = distance;
        best = known;
      }
    }
    return best;
  }

  /** Edits that make one text the other (Levenshtein). */
  private static int distance(String a, String b) {
    int[] row = new int[b.length() + 1];
    for (int j = 0; j <= b.length(); j++) {
      row[j] = j;
    }
    for (int i = 1; i <= a.length(); i++) {
      int diagonal = row[0];
      row[0] = i;
      for (int j = 1; j <= b.length(); j++) {
        int above = row[j];
        int replaced = diagonal + (a.charAt(i - 1) == b.charAt(j - 1) ? 0 : 1);
        row[j] = Math.min(replaced, 1 + Math.min(above, row[j - 1]));
        diagonal = above;
      }
    }
    return row[b.length()];
  }
}
