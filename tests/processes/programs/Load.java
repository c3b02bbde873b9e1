// Work of many kinds that checks its own results, and says the same in each run: java Load.java ROUNDS.

import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Load {
    static final Queue<String> failures = new ConcurrentLinkedQueue<>();
    static final AtomicInteger signals = new AtomicInteger();

    static String digest(String text) throws Exception {
        byte[] bytes = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        return HexFormat.of().formatHex(bytes);
    }

    static void serve(ServerSocket server) {
        try {
            while (true) {
                Socket client = server.accept();
                Thread thread = new Thread(() -> answer(client));
                thread.setDaemon(true);
                thread.start();
            }
        } catch (IOException over) {
        }
    }

    static void answer(Socket client) {
        try (client; BufferedReader lines = new BufferedReader(new InputStreamReader(client.getInputStream()))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine())
                client.getOutputStream().write((digest(line) + "\n").getBytes());
        } catch (Exception error) {
            failures.add("server: " + error);
        }
    }

    static int length(String text) {
        return text.length();
    }

    static String work(int number, int rounds, int port) throws Exception {
        Random random = new Random(number);
        String all = "";
        Map<Integer, String> objects = new HashMap<>();
        try (Socket socket = new Socket("127.0.0.1", port)) {
            BufferedReader answers = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            for (int turn = 0; turn < rounds * 20; turn++) {
                String line = (number + " " + turn + " ").repeat(50);
                socket.getOutputStream().write((line + "\n").getBytes());
                String said = answers.readLine();
                if (!digest(line).equals(said)) failures.add("thread " + number + ", turn " + turn + ": " + said);
                for (int i = 0; i < 2000; i++) objects.put(random.nextInt(5000), line.substring(i % 100));
                // The JVM learns of it by SIGSEGV, once it is compiled.
                try {
                    length(turn % 3 == 0 ? null : line);
                    if (turn % 3 == 0) failures.add("no exception");
                } catch (NullPointerException expected) {
                }
                all = digest(all + said + objects.get(turn % 5000));
            }
        }
        return all;
    }

    public static void main(String[] words) throws Exception {
        int rounds = Integer.parseInt(words[0]);
        sun.misc.Signal.handle(new sun.misc.Signal("ALRM"), signal -> signals.incrementAndGet());
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        Thread serving = new Thread(() -> serve(server));
        serving.setDaemon(true);
        serving.start();
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<String>> results = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            int number = i;
            results.add(pool.submit(() -> work(number, rounds, server.getLocalPort())));
        }
        for (int round = 0; round < rounds; round++) {
            String command = "kill -ALRM " + ProcessHandle.current().pid() + "; exit 7";
            int code = new ProcessBuilder("/bin/sh", "-c", command).start().waitFor();
            if (code != 7) failures.add("round " + round + ": exit code " + code);
            long deadline = System.nanoTime() + 30_000_000_000L;
            while (signals.get() <= round && System.nanoTime() < deadline) Thread.sleep(1);
            if (signals.get() != round + 1) failures.add("round " + round + ": " + signals + " signals");
        }
        for (Future<String> result : results) System.out.println(result.get());
        System.out.println(failures.isEmpty() ? "right" : String.join("\n", failures));
        System.exit(0);
    }
}
