package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class CompletionTest {
  private static final Completion NOTHING = new Completion(Map.of(), List.of());

  @Test
  void partTakesExecutorsAsTheyAre() {
    for (Policy policy : List.of(Policy.OFF, Policy.PART, Policy.PART_OLD)) {
      for (boolean local : List.of(true, false)) {
        assertEquals(NOTHING, Completion.of(policy, Map.of("spark.executor.extraJavaOptions", "-XX:+UseParallelGC -Xms1g",
            "spark.memory.offHeap.enabled", "true"), local));
      }
    }
  }

  @Test
  void entireAddsItsOptionOnceBehindThoseOfTheUser() {
    Completion completion = Completion.of(Policy.ENTIRE, Map.of("spark.executor.extraJavaOptions", "-Dx=y"), false);
    String options = completion.additions().get("spark.executor.extraJavaOptions");
    assertEquals("-Dx=y -XX:+UseTransparentHugePages", options);
    assertEquals(NOTHING, Completion.of(Policy.ENTIRE, completion.additions(), false));
  }

  @Test
  void whatCannotBeAddedIsTold() {
    assertTrue(Completion.of(Policy.ENTIRE, Map.of(), true).missing().get(0).contains("--driver-java-options"));
    for (String other : List.of("-XX:-UseTransparentHugePages", "-XX:+UseLargePages")) {
      Completion completion = Completion.of(Policy.ENTIRE, Map.of("spark.executor.extraJavaOptions", other), false);
      assertEquals(Map.of(), completion.additions());
      assertTrue(completion.missing().get(0).contains("sets huge pages otherwise"), other);
    }
  }
}
