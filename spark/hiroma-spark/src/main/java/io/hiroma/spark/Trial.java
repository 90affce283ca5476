package io.hiroma.spark;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import org.apache.commons.math3.distribution.TDistribution;
import org.apache.commons.math3.stat.descriptive.SummaryStatistics;

/**
 * Finds out on the running job whether huge pages gain: turns with them and turns without, in pairs whose order alternates. Tasks of the
 * same stage are compared, wherever it runs again: an iteration, or the next batch. Times are handed in; for any number of threads.
 */
final class Trial {
  /** What executors are to do. */
  enum Turn {
    /** As with {@link Policy#PART}, and nothing is measured yet: little is cached. */
    WAIT, WITH, WITHOUT,
    /** It gains. */
    KEEP,
    /** It does not, or nobody can tell. */
    LEAVE;

    boolean huge() {
      return this != WITHOUT && this != LEAVE;
    }

    boolean decided() {
      return this == KEEP || this == LEAVE;
    }
  }

  /** Less than this, in all executors together, is not worth a trial. */
  static final long LEAST_BYTES = 32L << 20;
  /** Pairs after which the estimate is looked at, and after which the trial ends. */
  static final int PAIRS_MIN = 6;
  static final int PAIRS_MAX = 12;
  /** So many pairs without a stage in both turns: this job does nothing twice. */
  static final int VOID_MAX = 12;
  /** A turn waits for executors that have not made their pages huge yet, but not longer than so many turns. */
  static final int WAIT_TURNS_MAX = 30;
  /** So many turns that ended without their huge pages: there is nothing to be compared. */
  static final int UNREADY_MAX = 3;
  private static final double CONFIDENCE = 0.95;
  private static final int STAGES_TOLD = 10;
  /** Less is not worth a word. */
  private static final double OWN_PERCENT_TOLD = 0.05;

  /** Tasks of a stage in a pair of turns: sums of the logarithms of their seconds. */
  private static final class Times {
    private final double[] logs = new double[2];
    private final int[] count = new int[2];
    private final double[] seconds = new double[2];

    private double allSeconds() {
      return seconds[0] + seconds[1];
    }
  }

  /**
   * What was saved of the time of tasks, in percent; negative if they took longer.
   *
   * @param low bounds of the 95 % interval of Student's t over pairs; both are infinite for a single pair
   */
  record Gain(double percent, double low, double high, int pairs) {}

  private final long turnMillis;
  private final long settleMillis;
  private Turn turn = Turn.WAIT;
  private long turnBegan;
  /** Tasks that begin later count. */
  private long countsFrom;
  /** The turn ends then, if a task has counted. */
  private long ends;
  private boolean counted;
  private int turns;
  private int voids;
  /** Whether the turn with huge pages of this pair had them; and how many did not. */
  private boolean ready = true;
  private int unready;
  /** What executors have spent in this pair on huge pages, beside tasks that count; and that as a share of those over all pairs. */
  private double ownSeconds;
  private final SummaryStatistics ownShares = new SummaryStatistics();
  /** Memory of all executors while tasks counted, with huge pages and without. */
  private final SummaryStatistics residentWith = new SummaryStatistics();
  private final SummaryStatistics residentWithout = new SummaryStatistics();
  private Map<String, Times> pair = new LinkedHashMap<>();
  private final SummaryStatistics pairs = new SummaryStatistics();
  private final Map<String, SummaryStatistics> stages = new TreeMap<>();
  private final Map<String, Double> weights = new TreeMap<>();
  private String reason = "too little is cached so far";

  /**
   * A trial.
   *
   * @param turnMillis how long a turn lasts
   * @param settleMillis the part of it in which pages are made huge or small, and tasks do not count
   */
  Trial(long turnMillis, long settleMillis) {
    this.turnMillis = turnMillis;
    this.settleMillis = settleMillis;
  }

  /**
   * What executors are to do now.
   *
   * @param cachedBytes what is cached in all of them together
   * @param busy whether the one that asks has not made its pages huge yet, as its turn wants
   */
  synchronized Turn at(long nowMillis, long cachedBytes, boolean busy) {
    if (busy && turn == Turn.WITH) {
      ready = nowMillis - turnBegan < WAIT_TURNS_MAX * turnMillis;
      if (ready) {
        countFrom(nowMillis + settleMillis);
      }
    }
    if (turn == Turn.WAIT && cachedBytes >= LEAST_BYTES) {
      begin(Turn.WITH, nowMillis);
    } else if (measuring() && counted && nowMillis >= ends) {
      // A turn in which nobody works, or a task takes longer, goes on until one has counted.
      turns++;
      if (turns % 2 == 0) {
        endPair();
      }
      if (measuring()) {
        // With, without, without, with: what changes steadily during the trial is in both alike.
        begin(turns % 4 == 1 || turns % 4 == 2 ? Turn.WITHOUT : Turn.WITH, nowMillis);
      }
    }
    return turn;
  }

  private boolean measuring() {
    return turn == Turn.WITH || turn == Turn.WITHOUT;
  }

  private void begin(Turn next, long nowMillis) {
    turn = next;
    turnBegan = nowMillis;
    counted = false;
    countsFrom = 0;
    ends = 0;
    countFrom(nowMillis + settleMillis);
    reason = "measuring";
  }

  private void countFrom(long millis) {
    countsFrom = Math.max(countsFrom, millis);
    ends = Math.max(ends, millis + turnMillis - settleMillis);
  }

  private void leave(String why) {
    turn = Turn.LEAVE;
    reason = "left: " + why;
  }

  /** Counts time that executors have spent on huge pages. What they spend before tasks count is for the trial, and not for the job. */
  synchronized void spent(long nowMillis, long micros) {
    if (turn == Turn.WITH && nowMillis >= countsFrom) {
      ownSeconds += micros / 1e6;
    }
  }

  /** Counts the memory that all executors have together. */
  synchronized void resident(long nowMillis, long bytes) {
    if (measuring() && nowMillis >= countsFrom) {
      (turn == Turn.WITH ? residentWith : residentWithout).addValue(bytes);
    }
  }

  /** Counts a task that ran from one time to the other, if that was within one turn. */
  synchronized void task(String stage, long beganMillis, long endedMillis) {
    if (!measuring() || beganMillis < countsFrom) {
      return;
    }
    if (!counted) {
      counted = true;
      // After an idle time the turn begins with the work.
      ends = Math.max(ends, beganMillis + turnMillis - settleMillis);
    }
    double seconds = Math.max(1, endedMillis - beganMillis) / 1e3;
    Times tasks = pair.computeIfAbsent(stage, any -> new Times());
    int side = turn == Turn.WITH ? 0 : 1;
    tasks.logs[side] += Math.log(seconds);
    tasks.count[side]++;
    tasks.seconds[side] += seconds;
  }

  private void endPair() {
    double sum = 0;
    double weight = 0;
    double withSeconds = pair.values().stream().mapToDouble(tasks -> tasks.seconds[0]).sum();
    for (Map.Entry<String, Times> entry : pair.entrySet()) {
      Times tasks = entry.getValue();
      if (ready && tasks.count[0] > 0 && tasks.count[1] > 0) {
        double difference = tasks.logs[0] / tasks.count[0] - tasks.logs[1] / tasks.count[1];
        stages.computeIfAbsent(entry.getKey(), any -> new SummaryStatistics()).addValue(difference);
        weights.merge(entry.getKey(), tasks.allSeconds(), Double::sum);
        sum += difference * tasks.allSeconds();
        weight += tasks.allSeconds();
      }
    }
    if (weight > 0) {
      double own = ownSeconds / withSeconds;
      ownShares.addValue(own);
      // As if the tasks had taken that much longer.
      pairs.addValue(sum / weight + Math.log1p(own));
      decide();
    } else {
      endVoid();
    }
    pair = new LinkedHashMap<>();
    ownSeconds = 0;
    ready = true;
  }

  /** Nothing could be compared. */
  private void endVoid() {
    if (ready) {
      voids++;
    } else {
      unready++;
    }
    if (voids >= VOID_MAX) {
      leave("no stage of this job runs often enough to be compared");
    } else if (unready >= UNREADY_MAX) {
      leave("making pages huge takes longer than " + WAIT_TURNS_MAX + " turns (spark.hiroma.turn.millis)");
    }
  }

  /** Once each time that another pair was added. */
  private void decide() {
    long count = pairs.getN();
    Gain gain = gain(pairs);
    if (count != PAIRS_MIN && count != PAIRS_MAX) {
      return;
    }
    if (gain.low() > 0) {
      turn = Turn.KEEP;
      reason = "kept";
    } else if (gain.high() < 0) {
      leave("tasks are slower with huge pages");
    } else if (count == PAIRS_MAX) {
      leave("no gain that could be told from chance");
    }
  }

  private static Gain gain(SummaryStatistics logs) {
    int count = (int) logs.getN();
    double mean = count == 0 ? 0 : logs.getMean();
    double half = count < 2 ? Double.POSITIVE_INFINITY
        : new TDistribution(count - 1).inverseCumulativeProbability((1 + CONFIDENCE) / 2) * logs.getStandardDeviation() / Math.sqrt(count);
    return new Gain(percent(mean), percent(mean + half), percent(mean - half), count);
  }

  private static double percent(double log) {
    return 100 * (1 - Math.exp(log));
  }

  /** Over all stages, each with the time that its tasks took. */
  synchronized Gain gain() {
    return gain(pairs);
  }

  /** What is known, in one sentence. */
  synchronized String told() {
    if (pairs.getN() == 0) {
      return reason;
    }
    double own = 100 * ownShares.getMean();
    String taken = own < OWN_PERCENT_TOLD ? "" : String.format(Locale.ROOT, "; making them took %.1f %% of it, which is taken off", own);
    return reason + ": " + sentence(gain(pairs)) + taken + memory();
  }

  private String memory() {
    return residentWith.getN() == 0 || residentWithout.getN() == 0 || residentWithout.getMean() == 0 ? ""
        : String.format(Locale.ROOT, "; memory of executors: %+.1f %%", 100 * (residentWith.getMean() / residentWithout.getMean() - 1));
  }

  /** The same for each of the stages that took most of the time. */
  synchronized Map<String, String> toldByStage() {
    List<String> names = new ArrayList<>(stages.keySet());
    names.sort(Comparator.comparingDouble((String name) -> -weights.get(name)));
    Map<String, String> told = new LinkedHashMap<>();
    names.stream().limit(STAGES_TOLD).forEach(name -> told.put(name, sentence(gain(stages.get(name)))));
    return told;
  }

  private static String sentence(Gain gain) {
    String interval = gain.pairs() < 2 ? "" : String.format(Locale.ROOT, " (%.1f to %.1f)", gain.low(), gain.high());
    return String.format(Locale.ROOT, "huge pages save %.1f %%%s of the time of tasks, in %d pairs of turns", gain.percent(), interval,
        gain.pairs());
  }
}
