// Which ISA levels headwise-selftest has passed at, for this version: what `headwise doctor` calls tested.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace headwise::cli {

/// The version the table below was filled for. A test compares it with the project's: a release cannot forget
/// to run again.
inline constexpr std::string_view kTestedVersion = "0.1.0";

struct TestedLevel {
  std::string_view level, how;
};
inline constexpr TestedLevel kTestedLevels[] = {
    {"plain", "on a Xeon (family 6, model 207)"},
    {"avx2", "on a Xeon (family 6, model 207)"},
    {"avx512", "on a Xeon (family 6, model 207)"},
    {"amx", "on a Xeon (family 6, model 207)"},
    {"neon", "on a Neoverse N1"},
};
/// Levels that ran under an emulator only: right in their answers, unknown in speed and on real silicon.
inline constexpr TestedLevel kEmulatedLevels[] = {
    {"neon_bf16", "under qemu-user, -cpu max"},
};

/// "tested ...", "emulated ..." or "untested".
enum class Trial { untested, emulated, tested };
constexpr TestedLevel find_level(std::string_view name, Trial& trial) {
  for (const TestedLevel& t : kTestedLevels)
    if (t.level == name) return trial = Trial::tested, t;
  for (const TestedLevel& t : kEmulatedLevels)
    if (t.level == name) return trial = Trial::emulated, t;
  return trial = Trial::untested, TestedLevel{name, "nowhere"};
}

}  // namespace headwise::cli
