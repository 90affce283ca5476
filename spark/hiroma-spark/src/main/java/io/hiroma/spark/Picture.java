package io.hiroma.spark;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.function.ToLongFunction;

/** The page of {@link HiromaTab} as HTML with inline SVG; it loads nothing and runs no script. */
final class Picture {
  /** In the page's address: the executor that is drawn. */
  static final String EXECUTOR = "executor";
  /** So many are drawn otherwise: each takes up to some hundred kilobytes. */
  static final int DRAWN_MAX = 20;
  private static final int COLUMN = 6;
  private static final int ROW = 4;
  private static final int WIDTH = COLUMN * (History.SAMPLES + 1);
  private static final int MAP_HEIGHT = ROW * RegionMap.CELLS;
  private static final int LINES_HEIGHT = 120;
  private static final String NOT_PRESENT = "#ffffff";
  /** For each kind of region: on small pages, on some huge pages, on huge pages only. */
  private static final Map<Region.Kind, List<String>> COLOURS = Map.of(Region.Kind.FREE, List.of("#eeeeee", "#cccccc", "#999999"),
      Region.Kind.YOUNG, List.of("#cfe2f3", "#7fb0dd", "#1f6fb5"), Region.Kind.HUMONGOUS, List.of("#f8d3ce", "#e58b7f", "#c0392b"),
      Region.Kind.OLD, List.of("#fde6c4", "#f2b75c", "#d68910"));
  private static final List<Line> LINES = List.of(new Line("cached", "#c0392b", Usage::cachedBytes),
      new Line("cached, on huge pages", "#27ae60", Usage::cachedHugeBytes), new Line("something else, on huge pages", "#7d3c98", Usage::otherHugeBytes));

  private record Line(String name, String colour, ToLongFunction<Usage> value) {}

  private Picture() {}

  /**
   * The whole page.
   *
   * @param trial null unless the policy is auto
   * @param chosen the executor to draw; null for the first ones
   */
  static String html(Trial trial, SortedMap<String, History> histories, String chosen, long nowMillis) {
    StringBuilder page = new StringBuilder();
    if (trial != null) {
      trial(page, trial);
    }
    if (histories.isEmpty()) {
      return page + "<p>No executor has reported yet; they do so every spark.hiroma.report.millis.</p>";
    }
    // Names are numbers.
    List<String> names = histories.keySet().stream()
        .sorted(Comparator.comparingInt(String::length).thenComparing(Comparator.naturalOrder())).toList();
    table(page, names, histories);
    legend(page);
    names.stream().filter(name -> chosen == null || chosen.equals(name)).limit(DRAWN_MAX).forEach(name -> {
      List<History.Sample> samples = histories.get(name).samples();
      if (!samples.isEmpty()) {
        executor(page, name, samples, nowMillis);
      }
    });
    return page.toString();
  }

  /** A line for each executor, from which it can be chosen. */
  private static void table(StringBuilder page, List<String> names, Map<String, History> histories) {
    page.append("<table class=\"hiroma-executors table table-sm\"><tr><th>Executor</th><th>Policy</th><th>Cached, MiB</th>"
        + "<th>of that on huge pages</th><th>something else on huge pages</th><th>In memory, MiB</th></tr>\n");
    for (String name : names) {
      Usage usage = histories.get(name).last();
      if (usage != null) {
        page.append("<tr><td><a href=\"?" + EXECUTOR + "=").append(URLEncoder.encode(name, StandardCharsets.UTF_8)).append("\">")
            .append(escaped(name)).append("</a></td><td>").append(escaped(usage.policy())).append("</td><td>").append(mib(usage.cachedBytes()))
            .append("</td><td>").append(mib(usage.cachedHugeBytes())).append("</td><td>").append(mib(usage.otherHugeBytes()))
            .append("</td><td>").append(mib(usage.residentBytes())).append("</td></tr>\n");
      }
    }
    page.append("</table>\n");
    if (names.size() > DRAWN_MAX) {
      page.append("<p>The first ").append(DRAWN_MAX).append(" of ").append(names.size()).append(" are drawn; the table leads to each.</p>\n");
    }
  }

  private static void trial(StringBuilder page, Trial trial) {
    page.append("<p class=\"hiroma-trial\">auto: ").append(escaped(trial.told())).append("</p>\n<ul>");
    trial.toldByStage().forEach((stage, told) -> page.append("<li>").append(escaped(stage)).append(": ").append(escaped(told)).append("</li>"));
    page.append("</ul>\n");
  }

  private static void legend(StringBuilder page) {
    page.append("<p>Each map: the heap of an executor, lowest addresses at the top, over time to the right. White is not in memory; pale is on small "
        + "pages, full on huge ones. ");
    for (Region.Kind kind : Region.Kind.values()) {
      square(page, COLOURS.get(kind).get(0));
      square(page, COLOURS.get(kind).get(2));
      page.append(kind.name().toLowerCase(java.util.Locale.ROOT)).append(" &#160; ");
    }
    page.append("<br/>Lines: ");
    for (Line line : LINES) {
      square(page, line.colour());
      page.append(line.name()).append(" &#160; ");
    }
    page.append("</p>\n");
  }

  private static void square(StringBuilder page, String colour) {
    page.append("<svg width=\"14\" height=\"12\"><rect width=\"12\" height=\"12\" stroke=\"#888888\" fill=\"").append(colour).append("\"/></svg>");
  }

  private static void executor(StringBuilder page, String executor, List<History.Sample> samples, long nowMillis) {
    History.Sample last = samples.get(samples.size() - 1);
    Usage usage = last.usage();
    page.append("<h4>Executor ").append(escaped(executor)).append(": ").append(escaped(usage.policy())).append("</h4>\n<p>cached ")
        .append(mib(usage.cachedBytes())).append(" MiB, of that on huge pages ").append(mib(usage.cachedHugeBytes()))
        .append(" MiB; something else on huge pages ").append(mib(usage.otherHugeBytes())).append(" MiB; in memory ")
        .append(mib(usage.residentBytes())).append(" MiB; advice refused ").append(usage.adviceFailures()).append(" times; made huge in ")
        .append(usage.collapseMicros() / 1000).append(" ms; given back ").append(mib(usage.returnedBytes()))
        .append(" MiB; native calls: ").append(escaped(usage.nativeCalls())).append("; heard of ")
        .append(Math.max(0, nowMillis - last.millis()) / 1000).append(" s ago</p>\n");
    if (!usage.problem().isEmpty()) {
      page.append("<p><strong>Not as asked for: ").append(escaped(usage.problem())).append("</strong></p>\n");
    }
    page.append("<svg class=\"hiroma-map\" width=\"").append(WIDTH).append("\" height=\"").append(MAP_HEIGHT).append("\" role=\"img\">")
        .append("<title>heap of executor ").append(escaped(executor)).append(" over time</title>");
    for (int column = 0; column < samples.size(); column++) {
      column(page, samples.get(column).map(), column * COLUMN);
    }
    page.append(frame(MAP_HEIGHT)).append("</svg><br/>\n");
    lines(page, samples);
    page.append("<p>from ").append((last.millis() - samples.get(0).millis()) / 1000).append(" s before the last report on</p>\n");
  }

  /** One report; neighbours that look the same are one rectangle. */
  private static void column(StringBuilder page, String map, int x) {
    int from = 0;
    for (int at = 1; at <= map.length(); at++) {
      if (at == map.length() || map.charAt(at) != map.charAt(from)) {
        rectangle(page, x, from * ROW, (at - from) * ROW, colour(RegionMap.cell(map.charAt(from))));
        from = at;
      }
    }
  }

  private static void rectangle(StringBuilder page, int x, int y, int height, String colour) {
    if (!colour.equals(NOT_PRESENT)) {
      page.append("<rect x=\"").append(x).append("\" y=\"").append(y).append("\" width=\"" + COLUMN + "\" height=\"").append(height)
          .append("\" fill=\"").append(colour).append("\"/>");
    }
  }

  private static String colour(RegionMap.Cell cell) {
    return cell.present() == RegionMap.Share.NONE ? NOT_PRESENT : COLOURS.get(cell.kind()).get(cell.huge().ordinal());
  }

  private static void lines(StringBuilder page, List<History.Sample> samples) {
    long most = 1;
    for (Line line : LINES) {
      most = Math.max(most, samples.stream().mapToLong(sample -> line.value().applyAsLong(sample.usage())).max().orElse(0));
    }
    page.append("<svg class=\"hiroma-lines\" width=\"" + WIDTH + "\" height=\"" + LINES_HEIGHT + "\" role=\"img\"><title>up to ").append(mib(most))
        .append(" MiB</title>");
    for (Line line : LINES) {
      page.append("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"").append(line.colour()).append("\" points=\"");
      for (int column = 0; column < samples.size(); column++) {
        long y = LINES_HEIGHT - 2 - line.value().applyAsLong(samples.get(column).usage()) * (LINES_HEIGHT - 4) / most;
        page.append(column * COLUMN + COLUMN / 2).append(',').append(y).append(' ');
      }
      page.append("\"/>");
    }
    page.append("<text x=\"4\" y=\"12\" font-size=\"11\">").append(mib(most)).append(" MiB</text>").append(frame(LINES_HEIGHT)).append("</svg>\n");
  }

  private static String frame(int height) {
    return "<rect x=\"0.5\" y=\"0.5\" width=\"" + (WIDTH - 1) + "\" height=\"" + (height - 1) + "\" fill=\"none\" stroke=\"#888888\"/>";
  }

  private static long mib(long bytes) {
    return bytes >> 20;
  }

  private static String escaped(String text) {
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\"", "&quot;");
  }
}
