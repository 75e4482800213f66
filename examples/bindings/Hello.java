// Hello from Java: causal attention on three tokens through the C interface, and the library's sentence where it refuses.
// SPDX-License-Identifier: Apache-2.0
import java.util.Locale;

public final class Hello {
  static {
    System.loadLibrary("hello_jni");
  }

  /** q, k, v and the answer are [batch tokens heads dim], packed; a refusal is an IllegalArgumentException. */
  static native float[] attention(float[] q, float[] k, float[] v, long[] shape, String mask);

  public static void main(String[] words) {
    float[] q = {1, 0, 0, 1, 1, 1}, k = {1, 0, 0, 1, 1, 1}, v = {1, 2, 3, 4, 5, 6};
    long[] shape = {1, 3, 1, 2};
    float[] out = attention(q, k, v, shape, "causal");
    for (int t = 0; t < 3; ++t)
      System.out.printf(Locale.ROOT, "token %d: %.3f %.3f%n", t, out[2 * t], out[2 * t + 1]);
    try {
      attention(q, k, v, shape, "causal & no");
    } catch (IllegalArgumentException refused) {
      System.out.println(refused.getMessage());
    }
  }
}
