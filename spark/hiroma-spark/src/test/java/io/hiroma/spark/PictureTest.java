package io.hiroma.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.StringReader;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import javax.xml.parsers.DocumentBuilderFactory;
import org.junit.jupiter.api.Test;
import org.xml.sax.InputSource;

class PictureTest {
  private static final long MIB = 1L << 20;

  private static Usage usage(long cached, String problem) {
    return new Usage("1", "part", cached, cached / 2, MIB, 4 * MIB, 0, 0, 0, problem, "JNI");
  }

  @Test
  void aMapTellsKindsAndPages() {
    List<Region> regions = List.of(new Region(0, MIB, 4 * MIB, Region.Kind.HUMONGOUS), new Region(4 * MIB, 5 * MIB, 8 * MIB, Region.Kind.OLD),
        new Region(8 * MIB, 8 * MIB, 12 * MIB, Region.Kind.FREE), new Region(12 * MIB, 13 * MIB, 16 * MIB, Region.Kind.YOUNG));
    String map = RegionMap.of(regions, Runs.of(0, 6 * MIB, 12 * MIB, 16 * MIB), Runs.of(0, 6 * MIB));
    // Each of the four is drawn as sixteen pieces of a quarter of a MiB.
    assertEquals(RegionMap.CELLS, map.length());
    assertEquals(new RegionMap.Cell(Region.Kind.HUMONGOUS, RegionMap.Share.ALL, RegionMap.Share.ALL), RegionMap.cell(map.charAt(15)));
    assertEquals(new RegionMap.Cell(Region.Kind.OLD, RegionMap.Share.ALL, RegionMap.Share.ALL), RegionMap.cell(map.charAt(16)));
    assertEquals(new RegionMap.Cell(Region.Kind.OLD, RegionMap.Share.NONE, RegionMap.Share.NONE), RegionMap.cell(map.charAt(31)));
    assertEquals(new RegionMap.Cell(Region.Kind.FREE, RegionMap.Share.NONE, RegionMap.Share.NONE), RegionMap.cell(map.charAt(32)));
    assertEquals(new RegionMap.Cell(Region.Kind.YOUNG, RegionMap.Share.ALL, RegionMap.Share.NONE), RegionMap.cell(map.charAt(63)));
    assertEquals(RegionMap.Share.NONE, RegionMap.cell('?').present());
  }

  @Test
  void largeHeapsAreDrawnInFewPieces() {
    List<Region> regions = new ArrayList<>();
    for (int number = 0; number < 1000; number++) {
      regions.add(new Region(number * 4 * MIB, number * 4 * MIB, (number + 1) * 4 * MIB, Region.Kind.OLD));
    }
    String map = RegionMap.of(regions, Runs.of(), Runs.of());
    assertTrue(map.length() <= RegionMap.CELLS && map.length() > RegionMap.CELLS / 2, map);
    assertEquals("", RegionMap.of(List.of(), Runs.of(), Runs.of()));
  }

  @Test
  void aLongHistoryKeepsItsBeginningAndItsEnd() {
    History history = new History();
    assertEquals(null, history.last());
    for (int number = 0; number < 10_000; number++) {
      history.add(usage(number, ""), "", number);
    }
    List<History.Sample> samples = history.samples();
    assertTrue(samples.size() <= History.SAMPLES && samples.size() >= History.SAMPLES / 2, () -> "" + samples.size());
    assertEquals(0, samples.get(0).millis());
    assertEquals(9_999, samples.get(samples.size() - 1).millis());
    long step = samples.get(1).millis() - samples.get(0).millis();
    for (int at = 1; at < samples.size() - 1; at++) {
      assertEquals(step, samples.get(at).millis() - samples.get(at - 1).millis());
    }
  }

  @Test
  void thePageIsWellFormedWhateverExecutorsReport() throws Exception {
    History history = new History();
    history.add(usage(3 * MIB, "<b> & \"c\""), "a@?\u00ff", 1_000);
    history.add(usage(0, "<b> & \"c\""), "", 3_000);
    String page = Picture.html(null, new TreeMap<>(java.util.Map.of("<1>", history)), null, 5_000);
    assertFalse(page.contains("<b>"));
    assertTrue(page.contains("heard of 2 s ago"), page);
    parse(page);
    assertTrue(Picture.html(null, new TreeMap<>(), null, 0).contains("No executor has reported yet"));
  }

  private static void parse(String page) throws Exception {
    DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(new InputSource(new StringReader("<html>" + page + "</html>")));
  }

  @Test
  void ofManyExecutorsSomeAreDrawnAndEachCanBeChosen() throws Exception {
    TreeMap<String, History> histories = new TreeMap<>();
    for (int number = 0; number < 300; number++) {
      History history = new History();
      history.add(usage(MIB, ""), "", 0);
      histories.put("" + number, history);
    }
    String all = Picture.html(null, histories, null, 0);
    parse(all);
    assertEquals(Picture.DRAWN_MAX, all.split("class=\"hiroma-map\"", -1).length - 1);
    assertTrue(all.contains("Executor 2:") && !all.contains("Executor 100:") && all.contains("href=\"?executor=299\""), all);
    String one = Picture.html(null, histories, "299", 0);
    parse(one);
    assertEquals(1, one.split("class=\"hiroma-map\"", -1).length - 1);
    assertTrue(one.contains("Executor 299:"), one);
    String none = Picture.html(null, histories, "<script>", 0);
    assertFalse(none.contains("script") || none.contains("class=\"hiroma-map\""), none);
  }
}
