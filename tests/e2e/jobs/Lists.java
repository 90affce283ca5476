import java.util.ArrayDeque;
import java.util.HashMap;

/** Chains of nodes in a map, and a queue of buffers: what survives several collections, and what does not. */
public class Lists {
    static final class Node {
        final Node next;
        final long value;
        final int[] payload;

        Node(long value, Node next) {
            this.value = value;
            this.next = next;
            payload = new int[60 + (int) (value % 100)];
            java.util.Arrays.fill(payload, (int) value);
        }
    }

    public static void main(String[] arguments) {
        HashMap<Long, Node> map = new HashMap<>();
        for (long i = 0; i < 200_000; i++) {
            long key = i * 7919 % 1_000_003 % 150_000;
            map.put(key, new Node(i, i % 4 == 0 ? null : map.get(key)));
        }
        long sum = 0;
        for (Node first : map.values()) {
            for (Node node = first; node != null; node = node.next) {
                sum = sum * 31 + node.value;
                for (int word : node.payload) {
                    sum += word;
                }
            }
        }
        ArrayDeque<byte[]> queue = new ArrayDeque<>();
        for (int i = 0; i < 3000; i++) {
            queue.add(new byte[20_000 + i % 50 * 100]);
            if (queue.size() > 500) {
                sum += queue.remove().length;
            }
        }
        System.out.println(map.size() + " " + sum);
    }
}
