// Draws random numbers, then again for a line of its input: of each source a line `kind name number`.

import java.security.SecureRandom;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;

public class Draw {
    static final Random random = new Random(), seeded = new Random(1);
    static final SecureRandom secure = new SecureRandom();
    static SecureRandom drbg;

    static Map<String, Object> draw() throws Exception {
        if (drbg == null) drbg = SecureRandom.getInstance("DRBG");
        Map<String, Object> drawn = new LinkedHashMap<>();
        drawn.put("kernel SecureRandom", HexFormat.of().formatHex(bytes(secure)));
        drawn.put("kernel UUID.randomUUID", UUID.randomUUID());
        drawn.put("memory SecureRandom-DRBG", HexFormat.of().formatHex(bytes(drbg)));
        drawn.put("kernel new-Random", new Random().nextLong());
        drawn.put("memory Random", random.nextLong());
        drawn.put("memory Math.random", Math.random());
        drawn.put("memory ThreadLocalRandom", ThreadLocalRandom.current().nextLong());
        drawn.put("seed Random(1)", seeded.nextLong());
        return drawn;
    }

    static byte[] bytes(SecureRandom random) {
        byte[] bytes = new byte[16];
        random.nextBytes(bytes);
        return bytes;
    }

    public static void main(String[] words) throws Exception {
        draw();
        System.out.println("ready");
        System.in.read();
        draw().forEach((name, number) -> System.out.println(name + " " + number));
    }
}
