// SPDX-License-Identifier: Apache-2.0 OR MIT
// Starts, holds 32 MiB, and then as much as it gets: says when the machine says no.
public class Hoard {
    public static void main(String[] arguments) {
        byte[][] held = new byte[4096][];
        int count = 0;
        try {
            while (count < held.length) {
                held[count] = new byte[1 << 20];
                count++;
                if (count == 32) System.out.println("started");
            }
            System.out.println("no end");
        } catch (OutOfMemoryError error) {
            held = null;
            System.out.println("refused");
        }
    }
}
