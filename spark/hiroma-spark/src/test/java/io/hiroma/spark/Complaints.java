package io.hiroma.spark;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.IntPredicate;
import java.util.regex.Pattern;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;

/** What the plugin says in the driver's log. */
final class Complaints extends AbstractAppender implements AutoCloseable {
  private final List<String> lines = new CopyOnWriteArrayList<>();

  private Complaints() {
    super("complaints", null, null, true, Property.EMPTY_ARRAY);
  }

  static Complaints listen() {
    Complaints complaints = new Complaints();
    complaints.start();
    root().addAppender(complaints);
    return complaints;
  }

  private static Logger root() {
    return (Logger) LogManager.getRootLogger();
  }

  @Override
  public void append(LogEvent event) {
    if (event.getLoggerName().startsWith("io.hiroma")) {
      lines.add(event.getMessage().getFormattedMessage());
    }
  }

  boolean said(String words) {
    return lines.stream().anyMatch(line -> line.contains(words));
  }

  /** Whether a line ends as {@code pattern} says, and the number in the pattern's group is a {@code wanted} one. */
  boolean said(String pattern, IntPredicate wanted) {
    return lines.stream().map(Pattern.compile(".*" + pattern)::matcher)
        .anyMatch(line -> line.matches() && wanted.test(Integer.parseInt(line.group(1))));
  }

  @Override
  public String toString() {
    return String.join("\n", lines);
  }

  @Override
  public void close() {
    root().removeAppender(this);
    stop();
  }
}
