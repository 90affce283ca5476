package io.hiroma.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.List;

/** A container as far as memory goes: a control group of its own with a limit (cgroups(7), both versions). */
final class MemoryLimit implements AutoCloseable {
  private final Path group;

  private MemoryLimit(Path group) {
    this.group = group;
  }

  /** A new one, or null, and a line that says so, where that is not allowed. */
  static MemoryLimit of(long bytes) throws IOException {
    IOException refused = null;
    for (List<String> way : List.of(List.of("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), List.of("/sys/fs/cgroup", "memory.max"))) {
      Path group = Path.of(way.get(0), "hiroma-test-" + ProcessHandle.current().pid());
      try {
        Files.createDirectory(group);
        try {
          Files.writeString(group.resolve(way.get(1)), Long.toString(bytes));
          return new MemoryLimit(group);
        } catch (IOException error) {
          Files.delete(group);
          throw error;
        }
      } catch (IOException error) {
        refused = error;
      }
    }
    System.out.println("skipped: no control group with a limit of memory can be made here: " + refused);
    return null;
  }

  /** Puts the shell that runs it, and what that becomes, into the group. */
  String script() {
    return "echo $$ > " + group.resolve("cgroup.procs");
  }

  boolean holds(long pid) throws IOException {
    return Files.readAllLines(group.resolve("cgroup.procs")).contains(Long.toString(pid));
  }

  /** Removes the group as soon as the last process has left it. */
  @Override
  public void close() {
    Cluster.until(() -> {
      try {
        Files.delete(group);
        return true;
      } catch (NoSuchFileException gone) {
        return true;
      } catch (IOException inUse) {
        return false;
      }
    }, () -> group + " is still in use");
  }
}
