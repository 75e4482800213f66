// Draws: Philox blocks (base/random.h) of many counters at once, one a lane. Included by every ISA level
// after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace headwise::cpu {
namespace {

/// Counters in, words out.
inline __attribute__((always_inline)) void draw_blocks(Lanes::U (&c)[4], std::uint64_t seed) {
  using U = Lanes::U;
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U low0, high0, low1, high1;
    Lanes::mulu(c[0], Lanes::setu(0xD2511F53u), low0, high0);
    Lanes::mulu(c[2], Lanes::setu(0xCD9E8D57u), low1, high1);
    c[0] = Lanes::xoru(Lanes::xoru(high1, c[1]), Lanes::setu(k0));
    c[2] = Lanes::xoru(Lanes::xoru(high0, c[3]), Lanes::setu(k1));
    c[1] = low1, c[3] = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

}  // namespace
}  // namespace headwise::cpu
