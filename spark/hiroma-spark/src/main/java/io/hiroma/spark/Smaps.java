package io.hiroma.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** The mappings of this process ({@code /proc/self/smaps}, proc_pid_smaps(5)). */
final class Smaps {
  private static final long PAGE = 4096;

  /**
   * Addresses {@code start} to {@code end}.
   *
   * @param resident bytes in memory
   * @param huge bytes of those on huge pages ({@code AnonHugePages})
   * @param flags the kernel's two-letter words; {@code hg}: advised to be huge
   */
  record Mapping(long start, long end, long resident, long huge, Set<String> flags) {}

  private Smaps() {}

  /** All mappings as if they were one: for large processes far cheaper than each of them ({@code smaps_rollup}, Linux 4.14). */
  static Mapping sum() throws IOException {
    List<String> lines = new ArrayList<>(Files.readAllLines(Path.of("/proc/self/smaps_rollup"), StandardCharsets.ISO_8859_1));
    lines.add("VmFlags:");
    return parse(lines).get(0);
  }

  /** Memory of this process in bytes, about: without a walk through its pages. */
  static long residentBytes() throws IOException {
    // The second number counts pages (proc_pid_statm(5)).
    return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * PAGE;
  }

  /** Reads the lines of {@code smaps}. */
  static List<Mapping> parse(List<String> lines) {
    List<Mapping> found = new ArrayList<>();
    long start = 0;
    long end = 0;
    long resident = 0;
    long huge = 0;
    for (String line : lines) {
      String[] words = line.trim().split("\\s+");
      if (words[0].equals("Rss:")) {
        resident = Long.parseLong(words[1]) * 1024;
      } else if (words[0].equals("AnonHugePages:")) {
        huge = Long.parseLong(words[1]) * 1024;
      } else if (words[0].equals("VmFlags:")) {
        // The last line of a mapping.
        found.add(new Mapping(start, end, resident, huge, Set.copyOf(List.of(words))));
      } else if (words[0].indexOf('-') > 0 && !words[0].endsWith(":")) {
        int dash = words[0].indexOf('-');
        start = Long.parseUnsignedLong(words[0].substring(0, dash), 16);
        end = Long.parseUnsignedLong(words[0].substring(dash + 1), 16);
      }
    }
    return found;
  }
}
