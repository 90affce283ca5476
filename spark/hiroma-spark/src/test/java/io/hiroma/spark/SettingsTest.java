package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.junit.jupiter.api.Test;

class SettingsTest {
  @Test
  void nothingSaidIsPart() {
    Settings settings = Settings.of(Map.of("spark.app.name", "x"));
    assertEquals(new Settings(Policy.PART, true, 200, 10, true, 10_000, 10_000, settings.complaints()), settings);
    assertTrue(settings.complaints().isEmpty());
  }

  @Test
  void everyPolicyIsKnownByItsWord() {
    for (Policy policy : Policy.values()) {
      Settings settings = Settings.of(Map.of("spark.hiroma.policy", " " + policy.word().toUpperCase() + " "));
      assertEquals(policy, settings.policy());
      assertTrue(settings.complaints().isEmpty());
    }
  }

  @Test
  void aTypingErrorInAKeyNamesTheKeyThatWasMeant() {
    Settings settings = Settings.of(Map.of("spark.hiroma.cpu.precent", "3"));
    assertEquals(10, settings.cpuPercent());
    assertEquals("there is no spark.hiroma.cpu.precent; did you mean spark.hiroma.cpu.percent?", settings.complaints().get(0));
  }

  @Test
  void aPolicyThatDoesNotExistIsOff() {
    Settings settings = Settings.of(Map.of("spark.hiroma.policy", "most"));
    assertEquals(Policy.OFF, settings.policy());
    assertTrue(settings.complaints().get(0).contains("\"most\""));
  }

  @Test
  void numbersAndTruthsThatAreNoneAreTold() {
    Settings settings = Settings.of(Map.of("spark.hiroma.sweep.millis", "soon", "spark.hiroma.cpu.percent", "101",
        "spark.hiroma.report.millis", "99999999999", "spark.hiroma.configure", "perhaps"));
    assertEquals(new Settings(Policy.PART, true, 200, 10, true, 10_000, 10_000, settings.complaints()), settings);
    assertEquals(4, settings.complaints().size());
  }

  @Test
  void turnsLastLongEnoughForEveryExecutorToKnow() {
    Settings settings = Settings.of(Map.of("spark.hiroma.turn.millis", "500", "spark.hiroma.report.millis", "1"));
    assertEquals(10_000, settings.turnMillis());
    assertEquals(1_000, settings.settleMillis());
    assertEquals(10_000, settings.reportMillis());
    assertTrue(settings.complaints().get(0).startsWith("spark.hiroma.turn.millis is a number from 2000 to")
        || settings.complaints().get(1).startsWith("spark.hiroma.turn.millis is a number from 2000 to"), settings::toString);
    Settings shortest = Settings.of(Map.of("spark.hiroma.turn.millis", "2000", "spark.hiroma.report.millis", "0"));
    assertTrue(shortest.settleMillis() > Question.EVERY_MILLIS && shortest.settleMillis() < 1_000);
    assertEquals(0, shortest.reportMillis());
    assertTrue(shortest.complaints().isEmpty());
  }

  @Test
  void autoNeedsLooksToCompareWith() {
    Settings settings = Settings.of(Map.of("spark.hiroma.policy", "auto", "spark.hiroma.sweep.millis", "0"));
    assertEquals(200, settings.sweepMillis());
    assertTrue(settings.complaints().get(0).contains("nothing for the policy auto to compare"));
    assertEquals(0, Settings.of(Map.of("spark.hiroma.sweep.millis", "0")).sweepMillis());
  }
}
