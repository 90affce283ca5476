package io.hiroma.spark;

import java.util.ArrayList;
import java.util.List;

/**
 * A heap in at most {@link #CELLS} characters, lowest addresses first: of each piece, what most of its regions hold, how much of it is in
 * memory and how much on huge pages.
 */
final class RegionMap {
  /** In an executor's report to the driver. */
  static final String KEY = "map";
  /** Pieces of a map. */
  static final int CELLS = 64;
  private static final char FIRST = 'A';
  private static final Region.Kind[] KINDS = Region.Kind.values();

  /** How much of a piece. */
  enum Share {
    NONE, SOME, ALL;

    static Share of(long bytes, long all) {
      return bytes == 0 ? NONE : bytes < all ? SOME : ALL;
    }
  }

  /** A piece of the heap. */
  record Cell(Region.Kind kind, Share present, Share huge) {}

  private RegionMap() {}

  static String of(List<Region> parts, Runs present, Runs huge) {
    List<Region> regions = even(parts);
    int each = (regions.size() + CELLS - 1) / CELLS;
    StringBuilder map = new StringBuilder();
    for (int first = 0; first < regions.size(); first += each) {
      List<Region> piece = regions.subList(first, Math.min(regions.size(), first + each));
      int[] kinds = new int[KINDS.length];
      piece.forEach(region -> kinds[region.kind().ordinal()]++);
      int most = 0;
      for (int kind = 0; kind < kinds.length; kind++) {
        most = kinds[kind] >= kinds[most] ? kind : most;
      }
      long start = piece.get(0).bottom();
      long bytes = piece.get(piece.size() - 1).end() - start;
      Cell cell = new Cell(KINDS[most], Share.of(present.within(start, start + bytes), bytes), Share.of(huge.within(start, start + bytes), bytes));
      map.append((char) (FIRST + (cell.kind().ordinal() * 3 + cell.present().ordinal()) * 3 + cell.huge().ordinal()));
    }
    return map.toString();
  }

  /** Generations are drawn in proportion: as regions of the same size each. */
  private static List<Region> even(List<Region> parts) {
    if (parts.size() >= CELLS || parts.isEmpty()) {
      return parts;
    }
    long all = parts.stream().mapToLong(Region::bytes).sum();
    List<Region> pieces = new ArrayList<>();
    for (Region part : parts) {
      long count = Math.max(1, part.bytes() * CELLS / all);
      for (long number = 0; number < count; number++) {
        long bottom = part.bottom() + part.bytes() / count * number;
        long end = number + 1 == count ? part.end() : part.bottom() + part.bytes() / count * (number + 1);
        pieces.add(new Region(bottom, Math.max(bottom, Math.min(end, part.top())), end, part.kind()));
      }
    }
    return pieces;
  }

  /** The piece that a character of {@link #of} stands for; what is none is free and not in memory. */
  static Cell cell(char character) {
    int number = character - FIRST;
    Share[] shares = Share.values();
    return number < 0 || number >= KINDS.length * 9 ? new Cell(Region.Kind.FREE, Share.NONE, Share.NONE)
        : new Cell(KINDS[number / 9], shares[number / 3 % 3], shares[number % 3]);
  }
}
