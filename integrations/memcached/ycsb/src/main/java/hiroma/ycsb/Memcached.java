package hiroma.ycsb;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * YCSB's requests in memcached's text protocol, one connection for each client thread.
 *
 * <p>Properties: {@code memcached.host} (127.0.0.1), {@code memcached.port} (11211). A record is one value: the number of fields, then
 * each name and content with its length. Scans are not possible.
 */
public class Memcached extends DB {
  private static final int ANSWER_TIMEOUT_MS = 60_000;

  private Socket socket;
  private InputStream in;

  @Override
  public void init() throws DBException {
    String host = getProperties().getProperty("memcached.host", "127.0.0.1");
    String port = getProperties().getProperty("memcached.port", "11211");
    try {
      socket = new Socket(host, Integer.parseInt(port));
      socket.setTcpNoDelay(true);
      socket.setSoTimeout(ANSWER_TIMEOUT_MS);
      in = new BufferedInputStream(socket.getInputStream(), 1 << 16);
    } catch (IOException | IllegalArgumentException e) {
      throw new DBException("cannot reach memcached at " + host + ":" + port, e);
    }
  }

  @Override
  public void cleanup() throws DBException {
    try {
      socket.close();
    } catch (IOException e) {
      throw new DBException(e);
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    try {
      byte[] value = get(table + key);
      if (value == null) {
        return Status.NOT_FOUND;
      }
      for (Map.Entry<String, byte[]> field : decode(value).entrySet()) {
        if (fields == null || fields.contains(field.getKey())) {
          result.put(field.getKey(), new ByteArrayByteIterator(field.getValue()));
        }
      }
      return Status.OK;
    } catch (IOException e) {
      return failed(e);
    }
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    Map<String, byte[]> fields = new HashMap<>();
    values.forEach((name, content) -> fields.put(name, content.toArray()));
    try {
      return set(table + key, encode(fields));
    } catch (IOException e) {
      return failed(e);
    }
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    try {
      byte[] value = get(table + key);
      Map<String, byte[]> fields = value == null ? new HashMap<>() : decode(value);
      values.forEach((name, content) -> fields.put(name, content.toArray()));
      return set(table + key, encode(fields));
    } catch (IOException e) {
      return failed(e);
    }
  }

  @Override
  public Status delete(String table, String key) {
    try {
      send("delete " + table + key + "\r\n");
      return line().equals("DELETED") ? Status.OK : Status.NOT_FOUND;
    } catch (IOException e) {
      return failed(e);
    }
  }

  @Override
  public Status scan(String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }

  private static Status failed(IOException e) {
    System.err.println("memcached: " + e);
    return Status.ERROR;
  }

  private void send(String text) throws IOException {
    socket.getOutputStream().write(text.getBytes(StandardCharsets.US_ASCII));
  }

  private Status set(String key, byte[] value) throws IOException {
    ByteArrayOutputStream request = new ByteArrayOutputStream(value.length + 64);
    request.writeBytes(("set " + key + " 0 0 " + value.length + "\r\n").getBytes(StandardCharsets.US_ASCII));
    request.writeBytes(value);
    request.writeBytes(new byte[] {'\r', '\n'});
    request.writeTo(socket.getOutputStream());
    String answer = line();
    if (!answer.equals("STORED")) {
      throw new IOException("set " + key + " was answered with " + answer);
    }
    return Status.OK;
  }

  private byte[] get(String key) throws IOException {
    send("get " + key + "\r\n");
    String answer = line();
    if (answer.equals("END")) {
      return null;
    }
    String[] words = answer.split(" ");
    if (words.length < 4 || !words[0].equals("VALUE") || !words[1].equals(key)) {
      throw new IOException("get " + key + " was answered with " + answer);
    }
    byte[] value = in.readNBytes(Integer.parseInt(words[3]));
    if (!line().isEmpty() || !line().equals("END")) {
      throw new IOException("the value of " + key + " does not end where it should");
    }
    return value;
  }

  private String line() throws IOException {
    StringBuilder text = new StringBuilder();
    for (int octet = in.read(); octet != '\n'; octet = in.read()) {
      if (octet < 0) {
        throw new EOFException("memcached closed the connection");
      }
      if (octet != '\r') {
        text.append((char) octet);
      }
    }
    return text.toString();
  }

  private static byte[] encode(Map<String, byte[]> fields) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    out.writeShort(fields.size());
    for (Map.Entry<String, byte[]> field : fields.entrySet()) {
      out.writeUTF(field.getKey());
      out.writeInt(field.getValue().length);
      out.write(field.getValue());
    }
    return bytes.toByteArray();
  }

  private static Map<String, byte[]> decode(byte[] value) throws IOException {
    DataInputStream data = new DataInputStream(new java.io.ByteArrayInputStream(value));
    Map<String, byte[]> fields = new HashMap<>();
    for (int left = data.readUnsignedShort(); left > 0; left--) {
      String name = data.readUTF();
      byte[] content = new byte[data.readInt()];
      data.readFully(content);
      fields.put(name, content);
    }
    return fields;
  }
}
