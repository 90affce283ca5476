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
  }

  /** Less than this, in all executors together, is not worth a trial. */
  static final long LEAST_BYTES = 32L << 20;
  /** Pairs after which the estimate is looked at, and after which the trial ends. */
  static final int PAIRS_MIN = 6;
  static final int PAIRS_MAX = 12;
  /** So many pairs without a stage in both turns: this job does nothing twice. */
  static final int VOID_MAX = 12;
  /** A turn waits for executors that are still making pages huge, but not longer than so many turns. */
  private static final int WAIT_TURNS_MAX = 10;
  private static final double CONFIDENCE = 0.95;
  private static final int STAGES_TOLD = 10;

  /** Tasks of a stage in a pair of turns: sums of the logarithms of their seconds. */
  private static final class Times {
    private final double[] logs = new double[2];
    private final int[] count = new int[2];
    private double seconds;
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
  private int turns;
  private int voids;
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
   * @param busy whether the one that asks is still making pages huge
   */
  synchronized Turn at(long nowMillis, long cachedBytes, boolean busy) {
    if (busy && turn == Turn.WITH && nowMillis - turnBegan < WAIT_TURNS_MAX * turnMillis) {
      countsFrom = Math.max(countsFrom, nowMillis + settleMillis);
    }
    if (turn == Turn.WAIT && cachedBytes >= LEAST_BYTES) {
      begin(Turn.WITH, nowMillis);
    } else if ((turn == Turn.WITH || turn == Turn.WITHOUT) && nowMillis - countsFrom >= turnMillis - settleMillis) {
      turns++;
      if (turns % 2 == 0) {
        endPair();
      }
      if (turn == Turn.WITH || turn == Turn.WITHOUT) {
        // With, without, without, with: what changes steadily during the trial is in both alike.
        begin(turns % 4 == 1 || turns % 4 == 2 ? Turn.WITHOUT : Turn.WITH, nowMillis);
      }
    }
    return turn;
  }

  private void begin(Turn next, long nowMillis) {
    turn = next;
    turnBegan = nowMillis;
    countsFrom = nowMillis + settleMillis;
    reason = "measuring";
  }

  /** Counts a task that ran from one time to the other, if that was within one turn. */
  synchronized void task(String stage, long beganMillis, long endedMillis) {
    if (turn != Turn.WITH && turn != Turn.WITHOUT || beganMillis < countsFrom) {
      return;
    }
    double seconds = Math.max(1, endedMillis - beganMillis) / 1e3;
    Times tasks = pair.computeIfAbsent(stage, any -> new Times());
    int side = turn == Turn.WITH ? 0 : 1;
    tasks.logs[side] += Math.log(seconds);
    tasks.count[side]++;
    tasks.seconds += seconds;
  }

  private void endPair() {
    double sum = 0;
    double weight = 0;
    for (Map.Entry<String, Times> entry : pair.entrySet()) {
      Times tasks = entry.getValue();
      if (tasks.count[0] > 0 && tasks.count[1] > 0) {
        double difference = tasks.logs[0] / tasks.count[0] - tasks.logs[1] / tasks.count[1];
        stages.computeIfAbsent(entry.getKey(), any -> new SummaryStatistics()).addValue(difference);
        weights.merge(entry.getKey(), tasks.seconds, Double::sum);
        sum += difference * tasks.seconds;
        weight += tasks.seconds;
      }
    }
    pair = new LinkedHashMap<>();
    if (weight == 0) {
      voids++;
    } else {
      pairs.addValue(sum / weight);
    }
    decide();
  }

  private void decide() {
    long count = pairs.getN();
    Gain gain = gain(pairs);
    if (count == PAIRS_MIN || count == PAIRS_MAX) {
      if (gain.low() > 0) {
        turn = Turn.KEEP;
        reason = "kept";
      } else if (gain.high() < 0) {
        turn = Turn.LEAVE;
        reason = "left: tasks are slower with huge pages";
      } else if (count == PAIRS_MAX) {
        turn = Turn.LEAVE;
        reason = "left: no gain that could be told from chance";
      }
    } else if (voids >= VOID_MAX) {
      turn = Turn.LEAVE;
      reason = "left: no stage of this job runs often enough to be compared";
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
    return pairs.getN() == 0 ? reason : reason + ": " + sentence(gain(pairs));
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
