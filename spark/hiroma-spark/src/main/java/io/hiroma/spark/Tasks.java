package io.hiroma.spark;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/** Hands the tasks of an application to a {@link Trial}, by the name of their stage. */
final class Tasks extends SparkListener {
  private final Trial trial;
  private final Map<Integer, String> stages = new ConcurrentHashMap<>();

  Tasks(Trial trial) {
    this.trial = trial;
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    // Stages of one line of the program that have other numbers of tasks do other things.
    stages.put(event.stageInfo().stageId(), event.stageInfo().name() + ", " + event.stageInfo().numTasks() + " tasks");
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    String stage = stages.get(event.stageId());
    if (stage != null && event.taskInfo().successful() && !event.taskInfo().speculative()) {
      trial.task(stage, event.taskInfo().launchTime(), event.taskInfo().finishTime());
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    stages.remove(event.stageInfo().stageId());
  }
}
