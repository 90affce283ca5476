import java.util.*;
public class Heap {
    static final class Node { Node next; long value; int[] more; Node(long value, Node next) { this.value = value; this.next = next; more = new int[100 + (int) (value % 300)]; more(); } void more() { for (int i = 0; i < more.length; i++) more[i] = (int) value * i; } }
    public static void main(String[] arguments) throws Exception {
        HashMap<Long, Node> map = new HashMap<>();
        long sum = 0;
        for (int round = 0; round < 2; round++) {
            for (long i = 0; i < 45_000; i++) { long key = i * 7919 % 1_000_003 % 40_000; map.put(key, new Node(i, i % 5 == 0 ? null : new Node(i + 1, null))); }
            for (Node node : map.values()) for (Node n = node; n != null; n = n.next) { sum = sum * 31 + n.value; for (int x : n.more) sum += x; }
        }
        Thread[] threads = new Thread[2];
        long[] sums = new long[2];
        for (int t = 0; t < 2; t++) { int me = t; threads[t] = new Thread(() -> { ArrayDeque<byte[]> held = new ArrayDeque<>(); for (int i = 0; i < 3000; i++) { byte[] b = new byte[20_000 + i % 50 * 100]; Arrays.fill(b, (byte) (i + me)); held.add(b); if (held.size() > 800) { byte[] old = held.remove(); for (byte v : old) sums[me] += v; } } }); threads[t].start(); }
        for (Thread thread : threads) thread.join();
        System.out.println(map.size() + " " + sum + " " + sums[0] + " " + sums[1]);
    }
}
