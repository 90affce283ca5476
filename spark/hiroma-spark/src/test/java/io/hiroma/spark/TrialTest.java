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
      trial.task("late", now, now + 50);
      now += 100;
      assertTrue(now < (Trial.WAIT_TURNS_MAX + 3) * 1_000);
    }
    assertEquals(Trial.Turn.WITHOUT, trial.at(now, ENOUGH, true));
    // What such a turn has measured proves nothing.
    while (trial.at(now, ENOUGH, true) != Trial.Turn.LEAVE) {
      trial.task("late", now, now + 50);
      now += 100;
      assertTrue(now < (Trial.UNREADY_MAX + 1) * (Trial.WAIT_TURNS_MAX + 5) * 1_000, trial::told);
    }
    assertEquals(0, trial.gain().pairs());
    assertTrue(trial.told().startsWith("left: making pages huge takes longer than"), trial::told);
  }

  @Test
  void anIdleTimeEndsNoTurnAndDecidesNothing() {
    Trial trial = new Trial(1_000, 100);
    long now = 0;
    for (; now < 600_000; now += 500) {
      assertEquals(Trial.Turn.WITH, trial.at(now, ENOUGH, false));
    }
    // A turn after it is as long as others.
    trial.task("map", now, now + 50);
    assertEquals(Trial.Turn.WITH, trial.at(now + 800, ENOUGH, false));
    assertEquals(Trial.Turn.WITHOUT, trial.at(now + 900, ENOUGH, false));
    for (now += 1_000; now < 1_200_000; now += 500) {
      assertEquals(Trial.Turn.WITHOUT, trial.at(now, ENOUGH, false));
    }
    trial.task("map", now, now + 50);
    trial.at(now + 900, ENOUGH, false);
    assertEquals(1, trial.gain().pairs());
  }

  @Test
  void tasksThatTakeLongerThanATurnAreCompared() {
    Random random = new Random(3);
    Trial trial = job(600_000, (stage, turn) -> (turn == Trial.Turn.WITH ? 3_600 : 4_000) + random.nextInt(50));
    assertEquals(Trial.Turn.KEEP, trial.at(700_000, ENOUGH, false), trial::told);
  }

  /** Six pairs do not decide, and then the job does nothing twice any more. */
  @Test
  void aTrialEndsThoughItsLastPairsAreVoid() {
    Random random = new Random(4);
    Trial trial = new Trial(1_000, 100);
    long now = 0;
    int number = 0;
    while (now < 200_000 && trial.at(now, ENOUGH, false) != Trial.Turn.LEAVE) {
      long ended = now + 60 + random.nextInt(60);
      trial.at(ended, ENOUGH, false);
      trial.task(trial.gain().pairs() < Trial.PAIRS_MIN ? "map" : "once " + number++, now, ended);
      now = ended;
    }
    assertEquals(Trial.PAIRS_MIN, trial.gain().pairs());
    assertTrue(trial.told().startsWith("left: no stage of this job runs often enough"), trial::told);
  }

  @Test
  void whatThePluginSpendsBesideTasksIsTakenOff() {
    Random random = new Random(5);
    long last = 0;
    Trial trial = new Trial(1_000, 100);
    for (long now = 0; now < 30_000;) {
      Trial.Turn turn = trial.at(now, ENOUGH, false);
      long ended = now + (turn == Trial.Turn.WITH ? 76 : 80) + random.nextInt(3);
      trial.at(ended, ENOUGH, false);
      trial.task("map", now, ended);
      // A tenth of the time that goes by.
      trial.spent(ended, (ended - last) * 100);
      trial.resident(ended, turn == Trial.Turn.WITH ? 1_030 : 1_000);
      last = ended;
      now = ended;
    }
    assertEquals(Trial.Turn.LEAVE, trial.at(40_000, ENOUGH, false));
    assertTrue(trial.gain().percent() < -3 && trial.gain().percent() > -8, trial::told);
    assertTrue(trial.told().matches(".*; making them took 1[01]\\.\\d % of it, which is taken off; memory of executors: \\+[23]\\.\\d %"), trial::told);
  }
}
