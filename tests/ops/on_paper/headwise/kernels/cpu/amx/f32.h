// The instructions that stored/amx_parts.h uses, written out in plain C++: its test includes this in place of
// the level's own header, and so runs the code of AMX tiles on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "headwise/kernels/cpu/isa/stored_kernels.h"

// NOLINTBEGIN: names of the compiler's own header
using __mmask16 = std::uint16_t;
struct __m512i {
  std::uint16_t half[32];
  std::uint32_t word(int i) const { return half[2 * i] | static_cast<std::uint32_t>(half[2 * i + 1]) << 16; }
  void set(int i, std::uint32_t x) {
    half[2 * i] = static_cast<std::uint16_t>(x), half[2 * i + 1] = static_cast<std::uint16_t>(x >> 16);
  }
};
struct __m512 {
  float at[16];
};

inline __m512i _mm512_loadu_si512(const void* p) {
  __m512i r;
  std::memcpy(&r, p, 64);
  return r;
}
inline void _mm512_storeu_si512(void* p, const __m512i& x) { std::memcpy(p, &x, 64); }
inline void expect_aligned(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 64 != 0) std::abort();
}
inline __m512i _mm512_load_si512(const void* p) {
  expect_aligned(p);
  return _mm512_loadu_si512(p);
}
inline void _mm512_store_si512(void* p, const __m512i& x) {
  expect_aligned(p);
  _mm512_storeu_si512(p, x);
}
/// One for each 16 bits.
template <class Each>
inline __m512i halves(Each&& each) {
  __m512i r;
  for (int i = 0; i < 32; ++i) r.half[i] = static_cast<std::uint16_t>(each(i));
  return r;
}
inline __m512i _mm512_setzero_si512() {
  return halves([](int) { return 0; });
}
inline __m512i _mm512_set1_epi16(short v) {
  return halves([=](int) { return v; });
}
inline __m512i _mm512_and_si512(const __m512i& a, const __m512i& b) {
  return halves([&](int i) { return a.half[i] & b.half[i]; });
}
inline __m512i _mm512_max_epu16(const __m512i& a, const __m512i& b) {
  return halves([&](int i) { return a.half[i] > b.half[i] ? a.half[i] : b.half[i]; });
}
inline __m512i _mm512_permutexvar_epi16(const __m512i& order, const __m512i& a) {
  return halves([&](int i) { return a.half[order.half[i] & 31]; });
}
inline __m512i _mm512_permutex2var_epi16(const __m512i& a, const __m512i& order, const __m512i& b) {
  return halves([&](int i) { return (order.half[i] & 32 ? b : a).half[order.half[i] & 31]; });
}
inline __m512i _mm512_maskz_loadu_epi16(std::uint32_t mask, const void* p) {
  __m512i r = _mm512_setzero_si512();
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u) std::memcpy(&r.half[i], static_cast<const char*>(p) + 2 * i, 2);
  return r;
}
inline __m512i _mm512_max_epu32(__m512i a, const __m512i& b) {
  for (int i = 0; i < 16; ++i)
    if (b.word(i) > a.word(i)) a.set(i, b.word(i));
  return a;
}
inline std::uint32_t _mm512_reduce_max_epu32(const __m512i& a) {
  std::uint32_t most = 0;
  for (int i = 0; i < 16; ++i) most = a.word(i) > most ? a.word(i) : most;
  return most;
}
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* p) {
  __m512 r{};
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) r.at[i] = p[i];
  return r;
}
// NOLINTEND

namespace headwise::cpu {
namespace {

using F = __m512;
struct Lanes {
  static F load(const float* p) {
    F r;
    std::memcpy(&r, p, 64);
    return r;
  }
  static void prefetch(const void*) {}
};
inline __m512i magnitude(const F& x) {
  __m512i r;
  for (int i = 0; i < 16; ++i) r.set(i, std::bit_cast<std::uint32_t>(x.at[i]) & 0x7fffffffu);
  return r;
}
struct Parts {
  __m512i word[3];
  explicit Parts(const F& x) {
    const auto upper = [](std::uint32_t bits) { return std::bit_cast<float>(bits & 0xffff0000u); };
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t first = std::bit_cast<std::uint32_t>(x.at[i]) + 0x8000u;
      const float rest = x.at[i] - upper(first);
      const auto second = std::bit_cast<std::uint32_t>(rest);
      word[0].set(i, first), word[1].set(i, second);
      word[2].set(i, std::bit_cast<std::uint32_t>(rest - upper(second)));
    }
  }
};

constexpr Index kTileBytes = 1024;
struct PaperTile {
  char line[16][64];
};
PaperTile paper[8];
int paper_rows[8];  // 0: tiles have no shape

/// A new shape leaves nothing that a sum may use.
inline void tiles_of_rows(int rows, int whole = 7) {
  if (rows < 1 || rows > 16) std::abort();
  for (int i = 0; i < 8; ++i) paper_rows[i] = i < whole ? rows : 16;
  std::memset(paper, 0xcd, sizeof paper);
}
inline void tiles_on() { tiles_of_rows(16); }
inline void tiles_off() { std::memset(paper_rows, 0, sizeof paper_rows); }
template <int T>
inline void tile_zero() {
  std::memset(&paper[T], 0, sizeof paper[T]);
}
template <int T>
inline void tile_load(const void* from, Index step) {
  if (paper_rows[T] == 0) std::abort();
  tile_zero<T>();
  for (int r = 0; r < paper_rows[T]; ++r)
    std::memcpy(paper[T].line[r], static_cast<const char*>(from) + r * step, 64);
}
template <int T>
inline void tile_store(void* to, Index step) {
  if (paper_rows[T] == 0) std::abort();
  for (int r = 0; r < paper_rows[T]; ++r)
    std::memcpy(static_cast<char*>(to) + r * step, paper[T].line[r], 64);
}
inline float without_denormals(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float paper_number(const char* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return without_denormals(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}
template <int C, int A, int B>
inline void tile_multiply() {
  if (paper_rows[B] != 16 || paper_rows[A] != paper_rows[C]) std::abort();
  for (int m = 0; m < paper_rows[C]; ++m)
    for (int n = 0; n < 16; ++n) {
      float chain[2] = {}, sum;
      for (int k = 0; k < 32; ++k)
        chain[k % 2] =
            without_denormals(std::fma(paper_number(paper[A].line[m] + 2 * k),
                                       paper_number(paper[B].line[k / 2] + 4 * n + k % 2 * 2), chain[k % 2]));
      std::memcpy(&sum, paper[C].line[m] + 4 * n, 4);
      sum = without_denormals(sum + without_denormals(chain[0] + chain[1]));
      std::memcpy(paper[C].line[m] + 4 * n, &sum, 4);
    }
}

}  // namespace
}  // namespace headwise::cpu
