// Device: where a tensor lies: the CPU, or one of the machine's CUDA devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)
namespace headwise {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {Kind::cuda, index}; }
  constexpr bool is_cpu() const { return kind == Kind::cpu; }

  /// As the one byte a view has room for: -1 the CPU, else the number of a CUDA device.
  static constexpr int kMostIndex = 127;
  constexpr std::int8_t byte() const { return is_cpu() ? std::int8_t{-1} : static_cast<std::int8_t>(index); }
  static constexpr Device of_byte(std::int8_t byte) { return byte < 0 ? cpu() : cuda(byte); }
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

std::ostream& operator<<(std::ostream& out, const Device& d);

}  // namespace headwise
#pragma GCC visibility pop
