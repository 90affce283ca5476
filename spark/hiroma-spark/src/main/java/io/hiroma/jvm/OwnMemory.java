package io.hiroma.jvm;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * The memory of this process by address ({@code /proc/self/mem}), where a wrong address is an error and not the end of the process. It is only
 * read. Not through a channel: those close when their thread is interrupted. Not for several threads at once.
 */
class OwnMemory implements AutoCloseable {
  /** Names in the tables are shorter. */
  private static final int TEXT_MAX = 256;
  /** So much is read at a time, up to the next multiple, so that no page is read that a text does not reach. */
  private static final int TEXT_PIECE = 64;

  private final RandomAccessFile file;

  OwnMemory(RandomAccessFile file) {
    this.file = file;
  }

  static OwnMemory open() {
    try {
      return new OwnMemory(new RandomAccessFile("/proc/self/mem", "r"));
    } catch (IOException error) {
      throw new IllegalStateException("this process may not read its own memory: " + error.getMessage(), error);
    }
  }

  /**
   * Reads {@code length} bytes.
   *
   * @throws IllegalStateException if not all of them can be read
   */
  ByteBuffer read(long address, int length) {
    byte[] bytes = new byte[length];
    try {
      file.seek(address);
      file.readFully(bytes);
    } catch (IOException error) {
      throw new IllegalStateException("the JVM's memory at 0x" + Long.toHexString(address) + " cannot be read: " + error.getMessage(), error);
    }
    return ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder());
  }

  final long readLong(long address) {
    return read(address, Long.BYTES).getLong();
  }

  final int readInt(long address) {
    return read(address, Integer.BYTES).getInt();
  }

  /** A text that ends with a zero byte; what is longer than 256 bytes is cut. */
  final String readText(long address) {
    StringBuilder text = new StringBuilder();
    long at = address;
    while (text.length() < TEXT_MAX) {
      int length = TEXT_PIECE - Math.floorMod(at, TEXT_PIECE);
      String piece = StandardCharsets.ISO_8859_1.decode(read(at, length)).toString();
      int end = piece.indexOf('\0');
      if (end >= 0) {
        return text.append(piece, 0, end).toString();
      }
      text.append(piece);
      at += length;
    }
    return text.toString();
  }

  @Override
  public void close() {
    try {
      file.close();
    } catch (IOException onlyRead) {
      // Nothing is lost.
    }
  }
}
