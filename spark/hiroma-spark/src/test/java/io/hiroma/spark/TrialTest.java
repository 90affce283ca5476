package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import java.util.function.ToDoubleBiFunction;
import org.junit.jupiter.api.Test;

class TrialTest {
  private static final long ENOUGH = Trial.LEAST_BYTES;

  /** Runs a job of two stages for {@code millis}, whose tasks take what {@code millisOf} says of the stage and the turn. */
  private static Trial job(long millis, ToDoubleBiFunction<String, Trial.Turn> millisOf) {
    Trial trial = new Trial(1_000, 100);
    long now = 0;
    while (now < millis) {
      for (String stage : new String[] {"map", "reduce"}) {
        Trial.Turn turn = trial.at(now, ENOUGH, false);
        long ended = now + Math.max(1, Math.round(millisOf.applyAsDouble(stage, turn)));
        trial.at(ended, ENOUGH, false);
        trial.task(stage, now, ended);
        now = ended;
      }
    }
    return trial;
  }

  @Test
  void aGainIsKeptAndToldByStage() {
    Random random = new Random(1);
    Trial trial = job(30_000, (stage, turn) -> (stage.equals("map") && turn == Trial.Turn.WITH ? 72 : 80) + random.nextInt(5));
    assertEquals(Trial.Turn.KEEP, trial.at(40_000, ENOUGH, false));
    assertTrue(trial.gain().low() > 0 && trial.gain().percent() > 3 && trial.gain().high() < 10, () -> trial.gain().toString());
    assertTrue(trial.told().startsWith("kept: huge pages save "), trial.told());
    assertEquals(2, trial.toldByStage().size());
    assertTrue(trial.toldByStage().get("map").contains("in " + Trial.PAIRS_MIN + " pairs"), () -> trial.toldByStage().toString());
  }

  @Test
  void aLossIsLeft() {
    Random random = new Random(2);
    Trial trial = job(30_000, (stage, turn) -> (turn == Trial.Turn.WITH ? 90 : 80) + random.nextInt(5));
    assertEquals(Trial.Turn.LEAVE, trial.at(40_000, ENOUGH, false));
    assertTrue(trial.told().contains("slower"), trial.told());
  }

  @Test
  void chanceIsNoGain() {
    int kept = 0;
    for (int seed = 0; seed < 40; seed++) {
      Random random = new Random(seed);
      Trial trial = job(30_000, (stage, turn) -> 60 + random.nextInt(60));
      kept += trial.at(40_000, ENOUGH, false) == Trial.Turn.KEEP ? 1 : 0;
    }
    // Two looks at intervals of 95 %: less than one in twenty on one side.
    assertTrue(kept <= 4, "kept " + kept + " of 40");
  }

  @Test
  void aJobThatDoesNothingTwiceIsLeft() {
    int[] number = {0};
    Trial trial = job(40_000, (stage, turn) -> 50);
    assertTrue(trial.gain().pairs() > 0);
    Trial once = new Trial(1_000, 100);
    for (long now = 0; now < 40_000; now += 100) {
      once.at(now, ENOUGH, false);
      once.task("stage " + number[0]++, now, now + 90);
    }
    assertEquals(Trial.Turn.LEAVE, once.at(40_000, ENOUGH, false));
    assertTrue(once.told().contains("no stage of this job"), once.told());
  }

  @Test
  void littleDataIsNoTrial() {
    Trial trial = new Trial(1_000, 100);
    assertEquals(Trial.Turn.WAIT, trial.at(0, ENOUGH - 1, false));
    assertEquals(Trial.Turn.WAIT, trial.at(100_000, ENOUGH - 1, false));
    assertEquals(Trial.Turn.WITH, trial.at(100_001, ENOUGH, false));
  }

  @Test
  void aTurnWaitsForExecutorsThatAreNotReadyButNotForEver() {
    Trial trial = new Trial(1_000, 100);
    long now = 0;
    for (; now < 3_000; now += 100) {
      assertEquals(Trial.Turn.WITH, trial.at(now, ENOUGH, true));
      trial.task("early", now, now + 50);
    }
    assertEquals(0, trial.gain().pairs());
    while (trial.at(now, ENOUGH, true) == Trial.Turn.WITH) {
      now += 100;
      assertTrue(now < 20_000);
    }
    assertEquals(Trial.Turn.WITHOUT, trial.at(now, ENOUGH, true));
  }
}
