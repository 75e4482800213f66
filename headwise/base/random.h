// Counter-based random numbers (Philox4x32-10): a value depends on its key and counter alone, on every
// device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise {

struct Philox {
  using Block = std::array<std::uint32_t, 4>;
  static constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;  // Salmon et al. 2011
  static constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  static constexpr int kRounds = 10;

  static constexpr Block block(std::uint64_t key, Block c) {
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t a = std::uint64_t{kMul0} * c[0], b = std::uint64_t{kMul1} * c[2];
      c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    return c;
  }
};
// Known answers of the authors' test file: zero counter and key, all ones.
static_assert(Philox::block(0, {0, 0, 0, 0}) ==
              Philox::Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
static_assert(Philox::block(~0ull, {~0u, ~0u, ~0u, ~0u}) ==
              Philox::Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});

/// Dropout's contract: the weight of (sequence, head, query, key) is dropped when its word is below the
/// threshold. Four consecutive keys share one block: counter {key / 4, query, head, sequence}, word key % 4;
/// positions below 2^32.
struct DropoutRule {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;  // round(p * 2^32), at most 2^32 - 1

  static constexpr DropoutRule of(double p, std::uint64_t seed) {
    const double t = p * 4294967296.0 + 0.5;
    return {seed, t >= 4294967295.0 ? 4294967295u : static_cast<std::uint32_t>(t)};
  }
  static constexpr Philox::Block counter(Index sequence, Index head, Index q, Index k) {
    return {static_cast<std::uint32_t>(k >> 2), static_cast<std::uint32_t>(q),
            static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(sequence)};
  }
  constexpr bool keep(Index sequence, Index head, Index q, Index k) const {
    return Philox::block(seed, counter(sequence, head, q, k))[static_cast<std::size_t>(k & 3)] >= threshold;
  }
};

}  // namespace headwise
