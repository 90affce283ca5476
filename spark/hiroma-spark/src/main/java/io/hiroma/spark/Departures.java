package io.hiroma.spark;

import java.util.function.Consumer;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;

/** Tells which executors an application has lost or sent away. */
final class Departures extends SparkListener {
  private final Consumer<String> removed;

  Departures(Consumer<String> removed) {
    this.removed = removed;
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    removed.accept(event.executorId());
  }
}
