// CRC-32C (Castagnoli), eight bytes a step by tables: finds every damage of up to 32 neighbouring bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headwise {

class Crc32c {
 public:
  constexpr void add(std::string_view bytes) {
    for (const char c : bytes) step(static_cast<unsigned char>(c));
  }
  void add(std::span<const std::byte> bytes) {
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      const auto at = [&](std::size_t k) { return std::to_integer<std::uint32_t>(bytes[i + k]); };
      const std::uint32_t low = state_ ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
      state_ = kTable[7][low & 255] ^ kTable[6][low >> 8 & 255] ^ kTable[5][low >> 16 & 255] ^
               kTable[4][low >> 24] ^ kTable[3][at(4)] ^ kTable[2][at(5)] ^ kTable[1][at(6)] ^
               kTable[0][at(7)];
    }
    for (; i < bytes.size(); ++i) step(std::to_integer<unsigned char>(bytes[i]));
  }
  constexpr std::uint32_t value() const { return ~state_; }

 private:
  constexpr void step(unsigned char c) { state_ = kTable[0][(state_ ^ c) & 255] ^ state_ >> 8; }

  using Table = std::array<std::array<std::uint32_t, 256>, 8>;
  static constexpr Table kTable = [] {
    Table t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0u);
      t[0][i] = c;
    }
    for (std::uint32_t i = 0; i < 256; ++i)
      for (std::size_t k = 1; k < 8; ++k) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
    return t;
  }();
  std::uint32_t state_ = ~0u;
};

}  // namespace headwise
