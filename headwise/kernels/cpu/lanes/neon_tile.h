// Eight rows by two vectors of products in the registers of NEON: c[i][j] += over k, ascending, a[k][i] *
// b[k][j]. Assembly, since compilers order this loop well in one place and badly in the next (Neoverse N1:
// 97 % of peak or 87).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace headwise::cpu {
namespace {

// c lies in v16 .. v31, row by row. A step has its a and b in v0 .. v3 or v4 .. v7 by turns; those of the
// next are loaded between its products (99 % of peak; 96 where they stand before their own).
asm(R"(
.macro hw_two a, i, k, x, y, c0, c1, c2, c3
  fmla v\c0\().4s, v\x\().4s, v\a\().s[\i]
  fmla v\c1\().4s, v\y\().4s, v\a\().s[\i]
  fmla v\c2\().4s, v\x\().4s, v\a\().s[\k]
  fmla v\c3\().4s, v\y\().4s, v\a\().s[\k]
.endm
.macro hw_step a0, a1, x, y
  hw_two \a0, 0, 1, \x, \y, 16, 17, 18, 19
  hw_two \a0, 2, 3, \x, \y, 20, 21, 22, 23
  hw_two \a1, 0, 1, \x, \y, 24, 25, 26, 27
  hw_two \a1, 2, 3, \x, \y, 28, 29, 30, 31
.endm
.macro hw_step_and_load a0, a1, x, y, a, b, next, na0, na1, nx, ny
  hw_two \a0, 0, 1, \x, \y, 16, 17, 18, 19
  ldp q\na0, q\na1, [\a, \next]
  hw_two \a0, 2, 3, \x, \y, 20, 21, 22, 23
  hw_two \a1, 0, 1, \x, \y, 24, 25, 26, 27
  ldp q\nx, q\ny, [\b, \next]
  hw_two \a1, 2, 3, \x, \y, 28, 29, 30, 31
.endm
.macro hw_three_steps a, b
  hw_step_and_load 0, 1, 2, 3, \a, \b, 32, 4, 5, 6, 7
  hw_step_and_load 4, 5, 6, 7, \a, \b, 64, 0, 1, 2, 3
  hw_step_and_load 0, 1, 2, 3, \a, \b, 96, 4, 5, 6, 7
.endm

// n steps, four a turn, the last turn apart: nothing past the end is read.
.macro hw_products a, b, n
  subs \n, \n, 4
  b.lt 3f
  ldp q0, q1, [\a]
  ldp q2, q3, [\b]
  subs \n, \n, 4
  b.lt 2f
1:
  hw_three_steps \a, \b
  hw_step_and_load 4, 5, 6, 7, \a, \b, 128, 0, 1, 2, 3
  add \a, \a, 128
  add \b, \b, 128
  subs \n, \n, 4
  b.ge 1b
2:
  hw_three_steps \a, \b
  hw_step 4, 5, 6, 7
  add \a, \a, 128
  add \b, \b, 128
3:
  adds \n, \n, 4
  b.eq 5f
4:
  ldp q0, q1, [\a], 32
  ldp q2, q3, [\b], 32
  hw_step 0, 1, 2, 3
  sub \n, \n, 1
  cbnz \n, 4b
5:
.endm

// `what` for each row of c, with the place of its first column, in a tile and where rows lie apart.
.macro hw_rows what, p, q
  \what 16, 17, 0, \p, \q
  \what 18, 19, 32, \p, \q
  \what 20, 21, 64, \p, \q
  \what 22, 23, 96, \p, \q
  \what 24, 25, 128, \p, \q
  \what 26, 27, 160, \p, \q
  \what 28, 29, 192, \p, \q
  \what 30, 31, 224, \p, \q
.endm
.macro hw_clear c0, c1, at, p, q
  movi v\c0\().2d, 0
  movi v\c1\().2d, 0
.endm
.macro hw_load c0, c1, at, p, q
  ldp q\c0, q\c1, [\p, \at]
.endm
.macro hw_store c0, c1, at, p, q
  stp q\c0, q\c1, [\p, \at]
.endm
.macro hw_load_on c0, c1, at, p, q
  ldp q\c0, q\c1, [\p]
  add \p, \p, \q
.endm
.macro hw_store_on c0, c1, at, p, q
  stp q\c0, q\c1, [\p]
  add \p, \p, \q
.endm
.macro hw_max c0, c1, at, p, q
  fmax \p\().4s, v\c0\().4s, \p\().4s
  fmax \q\().4s, v\c1\().4s, \q\().4s
.endm
// Plus what lies at x9 times p and q.
.macro hw_keep c0, c1, at, p, q
  ldp q4, q5, [x9, \at]
  fmla v\c0\().4s, v4.4s, \p\().4s
  fmla v\c1\().4s, v5.4s, \q\().4s
.endm

// One query of weights [8 keys][8 queries], four queries of each key in v0 .. v7.
.macro hw_query k, x, y
  hw_key 0, \k, \x, \y, 16, 17
  hw_key 1, \k, \x, \y, 18, 19
  hw_key 2, \k, \x, \y, 20, 21
  hw_key 3, \k, \x, \y, 22, 23
  hw_key 4, \k, \x, \y, 24, 25
  hw_key 5, \k, \x, \y, 26, 27
  hw_key 6, \k, \x, \y, 28, 29
  hw_key 7, \k, \x, \y, 30, 31
.endm
.macro hw_key i, k, x, y, c0, c1
  fmla v\c0\().4s, v\x\().4s, v\i\().s[\k]
  fmla v\c1\().4s, v\y\().4s, v\i\().s[\k]
.endm
.macro hw_four_weights a, at
  ldr q0, [\a, \at]
  ldr q1, [\a, 32 + \at]
  ldr q2, [\a, 64 + \at]
  ldr q3, [\a, 96 + \at]
  ldr q4, [\a, 128 + \at]
  ldr q5, [\a, 160 + \at]
  ldr q6, [\a, 192 + \at]
  ldr q7, [\a, 224 + \at]
.endm
.macro hw_row b, step, x, y
  ldp q\x, q\y, [\b]
  add \b, \b, \step
.endm
)");

/// Tiles c [8][8]; a and b lie [n][8].
struct TileNeon {
  using F = float32x4_t;

  /// c = the products; top becomes the larger of itself and each row.
  static void scores(const float* a, const float* b, std::int64_t n, float* c, F& top0, F& top1) {
    asm volatile(
        "hw_rows hw_clear\n\t"
        "hw_products %[a], %[b], %[n]\n\t"
        "hw_rows hw_store, %[c]\n\t"
        "hw_rows hw_max, %[top0], %[top1]"
        : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n), [top0] "+w"(top0), [top1] "+w"(top1)
        : [c] "r"(c)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
          "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory");
  }
  /// c = c * keep + the products; the outputs of many panels do not stay in L2, so c is asked for before
  /// them.
  static void weigh(const float* a, const float* b, std::int64_t n, float* c, F keep0, F keep1) {
    asm volatile(
        "prfm pstl1keep, [%[c]]\n\t"
        "prfm pstl1keep, [%[c], 64]\n\t"
        "prfm pstl1keep, [%[c], 128]\n\t"
        "prfm pstl1keep, [%[c], 192]\n\t"
        "hw_rows hw_clear\n\t"
        "hw_products %[a], %[b], %[n]\n\t"
        "mov x9, %[c]\n\t"
        "hw_rows hw_keep, %[keep0], %[keep1]\n\t"
        "hw_rows hw_store, %[c]"
        : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
        : [c] "r"(c), [keep0] "w"(keep0), [keep1] "w"(keep1)
        : "x9", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
          "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory");
  }
  /// c += the products, one chain from the c that lies there.
  static void add(const float* a, const float* b, std::int64_t n, float* c) {
    asm volatile(
        "hw_rows hw_load, %[c]\n\t"
        "hw_products %[a], %[b], %[n]\n\t"
        "hw_rows hw_store, %[c]"
        : [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
        : [c] "r"(c)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
          "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory");
  }
  /// c [8][8], rows c_step bytes apart, += over `count` panels of eight queries: panel.a + a_at is [8
  /// keys][8], panel.b + b_at its rows, b_step bytes apart; a row is loaded a query ahead.
  template <class Panel>
  static void add_panels(const Panel* panels, std::int64_t count, std::int64_t a_at, std::int64_t b_at,
                         std::int64_t b_step, float* c, std::int64_t c_step) {
    static_assert(sizeof(Panel) == 24);
    const void *a = c, *b;
    asm volatile(
        "hw_rows hw_load_on, %[a], %[c_step]\n"
        "1:\n\t"
        "ldp %[a], %[b], [%[panels]], 24\n\t"
        "add %[a], %[a], %[a_at]\n\t"
        "add %[b], %[b], %[b_at]\n\t"
        "hw_four_weights %[a], 0\n\t"
        "hw_row %[b], %[b_step], 8, 9\n\t"
        "hw_row %[b], %[b_step], 10, 11\n\t"
        "hw_query 0, 8, 9\n\t"
        "hw_row %[b], %[b_step], 8, 9\n\t"
        "hw_query 1, 10, 11\n\t"
        "hw_row %[b], %[b_step], 10, 11\n\t"
        "hw_query 2, 8, 9\n\t"
        "hw_row %[b], %[b_step], 8, 9\n\t"
        "hw_query 3, 10, 11\n\t"
        "hw_four_weights %[a], 16\n\t"
        "hw_row %[b], %[b_step], 10, 11\n\t"
        "hw_query 0, 8, 9\n\t"
        "hw_row %[b], %[b_step], 8, 9\n\t"
        "hw_query 1, 10, 11\n\t"
        "hw_row %[b], %[b_step], 10, 11\n\t"
        "hw_query 2, 8, 9\n\t"
        "hw_query 3, 10, 11\n\t"
        "sub %[count], %[count], 1\n\t"
        "cbnz %[count], 1b\n\t"
        "hw_rows hw_store_on, %[c], %[c_step]"
        : [a] "+&r"(a), [b] "=&r"(b), [panels] "+r"(panels), [count] "+r"(count), [c] "+r"(c)
        : [a_at] "r"(a_at), [b_at] "r"(b_at), [b_step] "r"(b_step), [c_step] "r"(c_step)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v16", "v17", "v18",
          "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc",
          "memory");
  }
};

}  // namespace
}  // namespace headwise::cpu
