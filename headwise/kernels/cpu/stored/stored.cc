#include "headwise/kernels/cpu/stored/stored.h"

#include <cstdlib>
#include <string_view>

#include "headwise/base/arena.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/stored/columns.h"
#include "headwise/kernels/cpu/stored/layout.h"
#include "headwise/kernels/cpu/stored/parts.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headwise::cpu::stored {
namespace {

/// Dot products of bytes are asked of the CPU itself, once: in a virtual machine that took 3 us a product.
bool has_dots() {
#if defined(__aarch64__)
  constexpr unsigned long kHwcapDotProducts = 1ul << 20;
  return (getauxval(AT_HWCAP) & kHwcapDotProducts) != 0;
#elif defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1u);
#else
  return false;
#endif
}
/// The level of tiles that was chosen says how far to go.
const StoredCore& core() {
  const std::string_view level = chosen_isa().name;
  if (level == "plain") return kStoredPlain;
  static const bool dots = has_dots();
#if defined(__aarch64__)
  return dots ? kStoredNeonDot : kStoredNeon;
#elif defined(__x86_64__)
  if (level == "avx2") return kStoredAvx2;
  return dots ? kStoredVnni : kStoredAvx512;
#else
  return kStoredPlain;
#endif
}

#if defined(__x86_64__)
/// Tiles have to be asked for until their speed was seen on a CPU that has them.
bool wants_tiles() {
  static const bool wanted = [] {
    const char* set = std::getenv("HEADWISE_AMX_WEIGHTS");
    return set && std::string_view(set) == "1";
  }();
  return wanted && std::string_view(chosen_isa().name) == "amx";
}
#endif

/// Which tiles take the rows of p in parts; null: none.
const StoredParts* parts_of(const Product& p) {
  if (p.format != StoredFormat::bf16) return nullptr;
  if (p.parts != nullptr) return p.parts;
#if defined(__x86_64__)
  if (wants_tiles()) return &kStoredAmx;
#endif
  return nullptr;
}

constexpr Index kMostRows = 64, kMostColumns = 12;  // of one task; columns of units

/// How a product is cut into tasks; cuts change no bits.
struct Cut {
  Index rows, columns, row_blocks, column_blocks;
};
Cut cut_of(const Product& p, int threads) {
  const Index columns = ceil_div(p.n, Index{kUnitColumns}), rows = min_of(kMostRows, max_of(p.m, 1));
  const Index row_blocks = ceil_div(max_of(p.m, 1), rows);
  const Index wanted = threads == 1 ? 1 : 4 * Index{threads};
  Index each = max_of(1, min_of(kMostColumns, columns * row_blocks / wanted));
  if (const Index whole = p.m > kFewRows ? 3 : 4; each > whole)
    each -= each % whole;  // of what tiles take at once
  return {rows, each, row_blocks, ceil_div(columns, each)};
}

struct Memory {
  std::int8_t* q = nullptr;
  float* scale = nullptr;
  std::int32_t* sum = nullptr;
  float* whole = nullptr;
  float* each = nullptr;
  Index each_floats = 0, c_floats = 0;
};
Memory lay_out(Arena& arena, const Product& p, const Cut& cut, int threads) {
  Memory m;
  if (p.rounded) {
    m.q = arena.take<std::int8_t>("stored.q", p.m * p.k);
    m.scale = arena.take<float>("stored.scale", p.m * (p.k / kGroup));
    m.sum = arena.take<std::int32_t>("stored.sum", 2 * p.m * (p.k / kGroup));
    m.whole = arena.take<float>("stored.whole", p.m * (p.k / kGroup));
  }
  m.c_floats = cut.rows * cut.columns * kUnitColumns;
  m.each_floats = m.c_floats + (p.rounded ? 0 : kStoredWide);
  m.each = arena.take<float>("stored.each", m.each_floats * threads);
  return m;
}

}  // namespace

bool in_parts(StoredFormat format) { return parts_of({.format = format}) != nullptr; }

std::size_t workspace_of(const Product& p, int threads) {
  if (parts_of(p)) return workspace_in_parts(p, threads);
  Arena arena = Arena::measuring();
  lay_out(arena, p, cut_of(p, threads), threads);
  return arena.used();
}

void run(const Product& p, std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  if (p.m == 0 || p.n == 0) return;
  const StoredCore& with = core();
  if (const StoredParts* parts = parts_of(p)) return run_in_parts(p, *parts, with, workspace, pool);
  const Cut cut = cut_of(p, pool.threads());
  Arena arena(workspace);
  const Memory memory = lay_out(arena, p, cut, pool.threads());
  const Index groups = p.k / kGroup;
  const auto round = [&](Index row, int) noexcept {
    for (Index g = 0; g < groups; ++g) {
      const Index at = row * groups + g;
      std::int32_t* half = memory.sum + 2 * at;
      with.round(p.x + row * p.x_step + g * kGroup, memory.q + at * kGroup, memory.scale + at, half);
      memory.whole[at] = memory.scale[at] * static_cast<float>(half[0] + half[1]);
    }
  };
  if (p.rounded && p.m <= 4)
    for (Index row = 0; row < p.m; ++row) round(row, 0);
  else if (p.rounded)
    pool.parallel_for(p.m, round);
  const Index column_bytes =
      (is_quantized(p.format) ? groups : p.k) * kUnits[static_cast<int>(p.format)].bytes;
  pool.parallel_for(cut.row_blocks * cut.column_blocks, [&](Index task, int worker) noexcept {
    float* c = memory.each + worker * memory.each_floats;
    const Index row0 = task % cut.row_blocks * cut.rows, rows = min_of(cut.rows, p.m - row0);
    const Index first = task / cut.row_blocks * cut.columns,
                columns = min_of(cut.columns, ceil_div(p.n, Index{kUnitColumns}) - first);
    const Index step = columns * kUnitColumns;
    const std::byte* units = p.units + first * column_bytes;
    if (!p.rounded)
      chain_columns(with, p, {units, column_bytes, columns, row0, rows, c, step, c + memory.c_floats});
    for (Index j = 0; p.rounded && j < columns; ++j)
      with.dots({static_cast<int>(p.format),
                 units + j * column_bytes,
                 {memory.q, memory.scale, memory.sum, memory.whole, groups},
                 row0,
                 rows,
                 c + j * kUnitColumns,
                 step});
    finish(p, c, step, row0, rows, first * kUnitColumns);
  });
}

}  // namespace headwise::cpu::stored
