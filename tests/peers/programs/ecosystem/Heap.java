import java.util.ArrayList;

/** A heap, a collection of it, and a child. */
public class Heap {
    public static void main(String[] words) throws Exception {
        var all = new ArrayList<long[]>();
        long sum = 0;
        for (int i = 0; i < 1_000_000; i++) {
            all.add(new long[] {i, i});
        }
        System.gc();
        for (long[] it : all) {
            sum += it[0];
        }
        int status = new ProcessBuilder("/bin/sh", "-c", "exit 3").start().waitFor();
        System.out.println("ok " + sum + " child " + status);
    }
}
