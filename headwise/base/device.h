// Device: where a tensor lies: the CPU, or one of the machine's CUDA devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>

namespace headwise {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {Kind::cuda, index}; }
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline std::ostream& operator<<(std::ostream& out, const Device& d) {
  if (d.kind == Device::Kind::cpu) return out << "the CPU";
  return out << "CUDA device " << d.index;
}

}  // namespace headwise
