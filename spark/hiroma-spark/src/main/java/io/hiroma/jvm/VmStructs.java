package io.hiroma.jvm;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.ToLongFunction;

/**
 * How HotSpot describes itself to its Serviceability Agent: tables of fields and constants, exported from libjvm.so (OpenJDK,
 * {@code src/hotspot/share/runtime/vmStructs.hpp}). They name what of the VM's inside can be relied upon in this very build. Types have
 * several names, since those differ between versions; the first that is there counts.
 */
final class VmStructs {
  /** Tables have some thousand entries; one without an end is none. */
  private static final int ENTRIES_MAX = 100_000;

  /**
   * Where a field is.
   *
   * @param offset in its object
   * @param address of a static one
   */
  record Place(long offset, long address) {}

  private final Map<String, Place> fields;
  private final Map<String, Integer> constants;

  VmStructs(Map<String, Place> fields, Map<String, Integer> constants) {
    this.fields = fields;
    this.constants = constants;
  }

  /**
   * Reads the tables.
   *
   * @param symbol finds exported symbols; 0 if there is none
   * @param wanted of which types
   * @throws IllegalStateException if there are none
   */
  static VmStructs read(OwnMemory memory, ToLongFunction<String> symbol, Predicate<String> wanted) {
    // Each symbol is a variable of 64 bits that holds an address, an offset or a length.
    ToLongFunction<String> value = name -> {
      long at = symbol.applyAsLong(name);
      if (at == 0) {
        throw undescribed(name);
      }
      return memory.readLong(at);
    };
    Map<String, Place> fields = new HashMap<>();
    int typeName = (int) value.applyAsLong("gHotSpotVMStructEntryTypeNameOffset");
    int fieldName = (int) value.applyAsLong("gHotSpotVMStructEntryFieldNameOffset");
    int offset = (int) value.applyAsLong("gHotSpotVMStructEntryOffsetOffset");
    int address = (int) value.applyAsLong("gHotSpotVMStructEntryAddressOffset");
    Map<Long, String> types = new HashMap<>();
    entries(memory, value, "Struct", typeName, entry -> {
      String type = types.computeIfAbsent(entry.getLong(typeName), memory::readText);
      if (wanted.test(type)) {
        fields.put(type + "::" + memory.readText(entry.getLong(fieldName)), new Place(entry.getLong(offset), entry.getLong(address)));
      }
    });
    Map<String, Integer> constants = new HashMap<>();
    int constantName = (int) value.applyAsLong("gHotSpotVMIntConstantEntryNameOffset");
    int constantValue = (int) value.applyAsLong("gHotSpotVMIntConstantEntryValueOffset");
    entries(memory, value, "IntConstant", constantName, entry -> {
      String name = memory.readText(entry.getLong(constantName));
      int end = name.indexOf("::");
      if (end > 0 && wanted.test(name.substring(0, end))) {
        constants.put(name, entry.getInt(constantValue));
      }
    });
    return new VmStructs(fields, constants);
  }

  private interface Reader {
    void read(ByteBuffer entry);
  }

  /** Each entry of a table up to the first one without a name. */
  private static void entries(OwnMemory memory, ToLongFunction<String> value, String kind, int name, Reader reader) {
    long stride = value.applyAsLong("gHotSpotVM" + kind + "EntryArrayStride");
    long at = value.applyAsLong("gHotSpotVM" + kind + "s");
    for (int number = 0; number < ENTRIES_MAX; number++) {
      ByteBuffer entry = memory.read(at + number * stride, (int) stride);
      if (entry.getLong(name) == 0) {
        return;
      }
      reader.read(entry);
    }
  }

  private static IllegalStateException undescribed(String what) {
    return new IllegalStateException("this JVM does not describe itself: " + what + " is missing from its vmStructs tables");
  }

  private static <T> T first(Map<String, T> found, String name, String... types) {
    for (String type : types) {
      T value = found.get(type + "::" + name);
      if (value != null) {
        return value;
      }
    }
    throw undescribed(String.join("|", types) + "::" + name);
  }

  /** Where a field is in an object. */
  long field(String name, String... types) {
    return first(fields, name, types).offset();
  }

  /** Where a static field is. */
  long staticField(String name, String... types) {
    return first(fields, name, types).address();
  }

  int constant(String name, String... types) {
    return first(constants, name, types);
  }

  /** Address of the heap's object, and first address and bytes of what is reserved for the heap; with every collector. */
  long[] heap(OwnMemory memory) {
    long heap = memory.readLong(staticField("_collectedHeap", "Universe"));
    long reserved = heap + field("_reserved", "CollectedHeap");
    return new long[] {heap, memory.readLong(reserved + field("_start", "MemRegion")),
        memory.readLong(reserved + field("_word_size", "MemRegion")) * Long.BYTES};
  }
}
