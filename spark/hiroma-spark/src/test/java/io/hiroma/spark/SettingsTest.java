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
}
