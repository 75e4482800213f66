// Eight rows by two vectors of products in the registers of NEON: c[i][j] += over k, ascending, a[k][i] *
// b[k][j]. Assembly, since compilers order this loop well in one place and badly in the next (Neoverse N1: 97
// % of peak or 87). SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace headwise::cpu {
namespace {

// clang-format off
// c lies in v16 .. v31, row by row. A step has its a and b in v0 .. v3 or v4 .. v7 by turns; those of the next
// are loaded between its products (99 % of peak; 96 where they stand before their own).
#define HEADWISE_TWO(a, i, k, x, y, c0, c1, c2, c3)     \
  "fmla v" #c0 ".4s, v" #x ".4s, v" #a ".s[" #i "]\n\t" \
  "fmla v" #c1 ".4s, v" #y ".4s, v" #a ".s[" #i "]\n\t" \
  "fmla v" #c2 ".4s, v" #x ".4s, v" #a ".s[" #k "]\n\t" \
  "fmla v" #c3 ".4s, v" #y ".4s, v" #a ".s[" #k "]\n\t"
#define HEADWISE_STEP(a0, a1, x, y, load_a, load_b)        \
  HEADWISE_TWO(a0, 0, 1, x, y, 16, 17, 18, 19) load_a      \
  HEADWISE_TWO(a0, 2, 3, x, y, 20, 21, 22, 23)             \
  HEADWISE_TWO(a1, 0, 1, x, y, 24, 25, 26, 27) load_b      \
  HEADWISE_TWO(a1, 2, 3, x, y, 28, 29, 30, 31)
#define HEADWISE_PAIR(p, at, r0, r1) "ldp q" #r0 ", q" #r1 ", [%[" #p "], " #at "]\n\t"
#define HEADWISE_EVEN(next)                             \
  HEADWISE_STEP(0, 1, 2, 3, HEADWISE_PAIR(a, next, 4, 5), HEADWISE_PAIR(b, next, 6, 7))
#define HEADWISE_ODD(next)                              \
  HEADWISE_STEP(4, 5, 6, 7, HEADWISE_PAIR(a, next, 0, 1), HEADWISE_PAIR(b, next, 2, 3))
#define HEADWISE_FIRST HEADWISE_PAIR(a, 0, 0, 1) HEADWISE_PAIR(b, 0, 2, 3)
#define HEADWISE_ON(floats, bytes)                      \
  "add %[a], %[a], " #bytes "\n\t"                      \
  "add %[b], %[b], " #bytes "\n\t"                      \
  "subs %[n], %[n], " #floats "\n\t"
// Four steps a turn, the last turn apart: nothing past the end is read.
#define HEADWISE_PRODUCTS                                                       \
  "subs %[n], %[n], 4\n\t"                                                      \
  "b.lt 3f\n\t"                                                                 \
  HEADWISE_FIRST                                                                \
  "subs %[n], %[n], 4\n\t"                                                      \
  "b.lt 2f\n"                                                                   \
  "1:\n\t"                                                                      \
  HEADWISE_EVEN(32) HEADWISE_ODD(64) HEADWISE_EVEN(96) HEADWISE_ODD(128)        \
  HEADWISE_ON(4, 128)                                                           \
  "b.ge 1b\n"                                                                   \
  "2:\n\t"                                                                      \
  HEADWISE_EVEN(32) HEADWISE_ODD(64) HEADWISE_EVEN(96)                          \
  HEADWISE_STEP(4, 5, 6, 7, , )                                                 \
  "add %[a], %[a], 128\n\t"                                                     \
  "add %[b], %[b], 128\n"                                                       \
  "3:\n\t"                                                                      \
  "adds %[n], %[n], 4\n\t"                                                      \
  "b.eq 5f\n"                                                                   \
  "4:\n\t"                                                                      \
  HEADWISE_FIRST                                                                \
  HEADWISE_STEP(0, 1, 2, 3, , )                                                 \
  HEADWISE_ON(1, 32)                                                            \
  "b.ne 4b\n"                                                                   \
  "5:\n\t"
#define HEADWISE_ROWS(op)                                                       \
  op(0, 16, 17) op(32, 18, 19) op(64, 20, 21) op(96, 22, 23)                    \
  op(128, 24, 25) op(160, 26, 27) op(192, 28, 29) op(224, 30, 31)
#define HEADWISE_CLEAR(at, c0, c1) "movi v" #c0 ".2d, 0\n\tmovi v" #c1 ".2d, 0\n\t"
#define HEADWISE_LOAD(at, c0, c1) "ldp q" #c0 ", q" #c1 ", [%[c], " #at "]\n\t"
#define HEADWISE_STORE(at, c0, c1) "stp q" #c0 ", q" #c1 ", [%[c], " #at "]\n\t"
#define HEADWISE_MAX(at, c0, c1)                        \
  "fmax %[top0].4s, v" #c0 ".4s, %[top0].4s\n\t"        \
  "fmax %[top1].4s, v" #c1 ".4s, %[top1].4s\n\t"
#define HEADWISE_KEEP(at, c0, c1)                       \
  "ldp q0, q1, [%[c], " #at "]\n\t"                     \
  "fmla v" #c0 ".4s, v0.4s, %[keep0].4s\n\t"            \
  "fmla v" #c1 ".4s, v1.4s, %[keep1].4s\n\t"
// The same from weights that lie [8 keys][8 queries]: y0 .. y7 hold four queries of each key in v0 .. v7; one
// query is a step, and b is loaded a step ahead.
#define HEADWISE_KEY(i, k, x, y, c0, c1, more)             \
  "fmla v" #c0 ".4s, v" #x ".4s, v" #i ".s[" #k "]\n\t"    \
  "fmla v" #c1 ".4s, v" #y ".4s, v" #i ".s[" #k "]\n\t" more
#define HEADWISE_QUERY(k, x, y, more)                                                   \
  HEADWISE_KEY(0, k, x, y, 16, 17, more(0)) HEADWISE_KEY(1, k, x, y, 18, 19, more(1))   \
  HEADWISE_KEY(2, k, x, y, 20, 21, more(2)) HEADWISE_KEY(3, k, x, y, 22, 23, more(3))   \
  HEADWISE_KEY(4, k, x, y, 24, 25, more(4)) HEADWISE_KEY(5, k, x, y, 26, 27, more(5))   \
  HEADWISE_KEY(6, k, x, y, 28, 29, more(6)) HEADWISE_KEY(7, k, x, y, 30, 31, more(7))
#define HEADWISE_NONE(i)
#define HEADWISE_NEXT_FOUR(i) "ldr q" #i ", [%[a], 32 * " #i " + 16]\n\t"
#define HEADWISE_FIRST_FOUR(i) "ldr q" #i ", [%[a], 32 * " #i "]\n\t"
#define HEADWISE_B(x, y) "ldp q" #x ", q" #y ", [%[b]]\n\tadd %[b], %[b], %[b_step]\n\t"
#define HEADWISE_EIGHT(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7)
#define HEADWISE_LINE_IN(at, c0, c1) "ldp q" #c0 ", q" #c1 ", [%[a]]\n\tadd %[a], %[a], %[c_step]\n\t"
#define HEADWISE_LINE_OUT(at, c0, c1) "stp q" #c0 ", q" #c1 ", [%[c]]\n\tadd %[c], %[c], %[c_step]\n\t"
#define HEADWISE_SCRATCH                                                                                \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22",      \
  "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory"
// clang-format on

/// Tiles c [8][8]; a and b lie [n][8].
struct TileNeon {
  using F = float32x4_t;

  /// c = the products; top becomes the larger of itself and each row.
  static void scores(const float* a, const float* b, std::int64_t n, float* c, F& top0, F& top1) {
    asm volatile(HEADWISE_ROWS(HEADWISE_CLEAR) HEADWISE_PRODUCTS HEADWISE_ROWS(HEADWISE_STORE)
                     HEADWISE_ROWS(HEADWISE_MAX)
                 : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n), [top0] "+w"(top0), [top1] "+w"(top1)
                 : [c] "r"(c)
                 : HEADWISE_SCRATCH);
  }
  /// c = c * keep + the products.
  static void weigh(const float* a, const float* b, std::int64_t n, float* c, F keep0, F keep1) {
    asm volatile(HEADWISE_ROWS(HEADWISE_CLEAR) HEADWISE_PRODUCTS HEADWISE_ROWS(HEADWISE_KEEP)
                     HEADWISE_ROWS(HEADWISE_STORE)
                 : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
                 : [c] "r"(c), [keep0] "w"(keep0), [keep1] "w"(keep1)
                 : HEADWISE_SCRATCH);
  }
  /// c += the products, one chain from the c that lies there.
  static void add(const float* a, const float* b, std::int64_t n, float* c) {
    asm volatile(HEADWISE_ROWS(HEADWISE_LOAD) HEADWISE_PRODUCTS HEADWISE_ROWS(HEADWISE_STORE)
                 : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
                 : [c] "r"(c)
                 : HEADWISE_SCRATCH);
  }
  /// c [8][8], rows c_step bytes apart, += over `count` parts of eight queries: part.a + a_at is [8 keys][8],
  /// part.b + b_at its rows, b_step bytes apart.
  template <class Part>
  static void add_parts(const Part* parts, std::int64_t count, std::int64_t a_at, std::int64_t b_at,
                        std::int64_t b_step, float* c, std::int64_t c_step) {
    static_assert(sizeof(Part) == 24);
    const void *a = c, *b;
    asm volatile(HEADWISE_ROWS(HEADWISE_LINE_IN)
                 "1:\n\t"
                 "ldp %[a], %[b], [%[parts]], 24\n\t"
                 "add %[a], %[a], %[a_at]\n\t"
                 "add %[b], %[b], %[b_at]\n\t"
                 HEADWISE_EIGHT(HEADWISE_FIRST_FOUR) HEADWISE_B(8, 9)
                 HEADWISE_B(10, 11) HEADWISE_QUERY(0, 8, 9, HEADWISE_NONE)
                 HEADWISE_B(8, 9) HEADWISE_QUERY(1, 10, 11, HEADWISE_NONE)
                 HEADWISE_B(10, 11) HEADWISE_QUERY(2, 8, 9, HEADWISE_NONE)
                 HEADWISE_B(8, 9) HEADWISE_QUERY(3, 10, 11, HEADWISE_NEXT_FOUR)
                 HEADWISE_B(10, 11) HEADWISE_QUERY(0, 8, 9, HEADWISE_NONE)
                 HEADWISE_B(8, 9) HEADWISE_QUERY(1, 10, 11, HEADWISE_NONE)
                 HEADWISE_B(10, 11) HEADWISE_QUERY(2, 8, 9, HEADWISE_NONE)
                 HEADWISE_QUERY(3, 10, 11, HEADWISE_NONE)
                 "subs %[count], %[count], 1\n\t"
                 "b.ne 1b\n\t"
                 HEADWISE_ROWS(HEADWISE_LINE_OUT)
                 : [a] "+&r"(a), [b] "=&r"(b), [parts] "+r"(parts), [count] "+r"(count), [c] "+r"(c)
                 : [a_at] "r"(a_at), [b_at] "r"(b_at), [b_step] "r"(b_step), [c_step] "r"(c_step)
                 : "v8", "v9", "v10", "v11", HEADWISE_SCRATCH);
  }
};

#undef HEADWISE_TWO
#undef HEADWISE_STEP
#undef HEADWISE_PAIR
#undef HEADWISE_EVEN
#undef HEADWISE_ODD
#undef HEADWISE_FIRST
#undef HEADWISE_ON
#undef HEADWISE_PRODUCTS
#undef HEADWISE_ROWS
#undef HEADWISE_CLEAR
#undef HEADWISE_LOAD
#undef HEADWISE_STORE
#undef HEADWISE_MAX
#undef HEADWISE_KEEP
#undef HEADWISE_KEY
#undef HEADWISE_QUERY
#undef HEADWISE_NONE
#undef HEADWISE_NEXT_FOUR
#undef HEADWISE_FIRST_FOUR
#undef HEADWISE_B
#undef HEADWISE_EIGHT
#undef HEADWISE_LINE_IN
#undef HEADWISE_LINE_OUT
#undef HEADWISE_SCRATCH

}  // namespace
}  // namespace headwise::cpu
