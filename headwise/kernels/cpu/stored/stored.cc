#include "headwise/kernels/cpu/stored/stored.h"

#include <cmath>
#include <string_view>

#include "headwise/base/arena.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/stored/layout.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headwise::cpu {
namespace {

/// The level of tiles that was chosen says how far to go; dot products of bytes are asked of the CPU itself.
const StoredCore& core() {
  const std::string_view level = chosen_isa().name;
  if (level == "plain") return kStoredPlain;
#if defined(__aarch64__)
  constexpr unsigned long kHwcapDotProducts = 1ul << 20;
  return (getauxval(AT_HWCAP) & kHwcapDotProducts) != 0 ? kStoredNeonDot : kStoredNeon;
#elif defined(__x86_64__)
  if (level == "avx2") return kStoredAvx2;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool vnni = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1u);
  return vnni ? kStoredVnni : kStoredAvx512;
#else
  return kStoredPlain;
#endif
}

constexpr Index kMostRows = 64, kMostColumns = 8;  // of one task; columns of units

/// How a product is cut into tasks; cuts change no bits.
struct Cut {
  Index rows, columns, row_blocks, column_blocks;
};
Cut cut_of(const StoredProduct& p, int threads) {
  const Index columns = ceil_div(p.n, Index{kUnitColumns}), rows = min_of(kMostRows, max_of(p.m, 1));
  const Index row_blocks = ceil_div(max_of(p.m, 1), rows);
  const Index wanted = threads == 1 ? 1 : 4 * Index{threads};
  const Index each = max_of(1, min_of(kMostColumns, columns * row_blocks / wanted));
  return {rows, each, row_blocks, ceil_div(columns, each)};
}

struct Memory {
  std::int8_t* q = nullptr;
  float* scale = nullptr;
  std::int32_t* sum = nullptr;
  float* each = nullptr;
  Index each_floats = 0, c_floats = 0;
};
Memory lay_out(Arena& arena, const StoredProduct& p, const Cut& cut, int threads) {
  Memory m;
  if (p.rounded) {
    m.q = arena.take<std::int8_t>("stored.q", p.m * p.k);
    m.scale = arena.take<float>("stored.scale", p.m * (p.k / kGroup));
    m.sum = arena.take<std::int32_t>("stored.sum", 2 * p.m * (p.k / kGroup));
  }
  m.c_floats = cut.rows * cut.columns * kUnitColumns;
  m.each_floats = m.c_floats + (p.rounded ? 0 : kStoredDepth * kUnitColumns);
  m.each = arena.take<float>("stored.each", m.each_floats * threads);
  return m;
}

/// q = x / scale rounded to the nearest even, scale = the largest |x| / 127. What is not finite makes its
/// group NaN.
void round_row(const float* x, Index groups, std::int8_t* q, float* scale, std::int32_t* sum) noexcept {
  for (Index g = 0; g < groups; ++g, x += kGroup, q += kGroup) {
    float top = 0;
    bool finite = true;
    for (Index i = 0; i < kGroup; ++i) {
      const float a = std::fabs(x[i]);
      finite = finite && a <= 3.4028234e38f;
      top = a > top ? a : top;
    }
    scale[g] = finite ? top / 127.0f : std::nanf("");
    const float inverse = finite && top > 0 ? 127.0f / top : 0.0f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    std::int32_t half[2] = {};
    for (Index i = 0; i < kGroup; ++i) {
      const float whole = finite ? (x[i] * inverse + kRound) - kRound : 0.0f;
      q[i] = static_cast<std::int8_t>(whole > 127.0f ? 127.0f : whole < -127.0f ? -127.0f : whole);
      half[i / 16] += q[i];
    }
    sum[2 * g] = half[0], sum[2 * g + 1] = half[1];
  }
}

/// One column of units times some rows, into c [rows].
struct ColumnTask {
  const std::byte* column;
  Index row0, rows;
  float* c;
  Index c_step;
  float* scratch;
};
void exact_column(const StoredCore& with, const StoredProduct& p, const ColumnTask& t) noexcept {
  const Index unit = kUnits[static_cast<int>(p.format)].bytes, group = is_quantized(p.format) ? kGroup : 1;
  for (Index k0 = 0; k0 < p.k; k0 += kStoredDepth)
    with.multiply({static_cast<int>(p.format), t.column + k0 / group * unit, min_of(kStoredDepth, p.k - k0),
                   p.x + t.row0 * p.x_step + k0, p.x_step, t.rows, t.c, t.c_step, k0 > 0, t.scratch});
}

void finish(const StoredProduct& p, const float* c, Index c_step, Index row0, Index rows,
            Index column0) noexcept {
  const GemmKernels& kernels = *chosen_isa().gemm();
  const Index columns = min_of(c_step, p.n - column0);
  const auto at = [&](const float* all, Index row, Index step) {
    return all ? all + row * step + column0 : nullptr;
  };
  for (Index i = 0; i < rows; ++i) {
    const Index row = row0 + i;
    kernels.finish(
        static_cast<int>(p.activation),
        {c + i * c_step, at(p.bias, 0, 0), at(p.factor, row, p.factor_step),
         at(p.residual, row, p.residual_step), nullptr, p.out + row * p.out_step + column0, columns});
  }
}

}  // namespace

const char* stored_isa() { return core().isa; }

std::size_t stored_workspace(const StoredProduct& p, int threads) {
  Arena arena = Arena::measuring();
  lay_out(arena, p, cut_of(p, threads), threads);
  return arena.used();
}

void run_stored(const StoredProduct& p, std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  if (p.m == 0 || p.n == 0) return;
  const StoredCore& with = core();
  const Cut cut = cut_of(p, pool.threads());
  Arena arena(workspace);
  const Memory memory = lay_out(arena, p, cut, pool.threads());
  const Index groups = p.k / kGroup;
  const auto round = [&](Index row, int) noexcept {
    round_row(p.x + row * p.x_step, groups, memory.q + row * p.k, memory.scale + row * groups,
              memory.sum + 2 * row * groups);
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
    for (Index j = 0; j < columns; ++j) {
      const std::byte* column = p.units + (first + j) * column_bytes;
      if (p.rounded)
        with.dots({static_cast<int>(p.format),
                   column,
                   {memory.q, memory.scale, memory.sum, groups},
                   row0,
                   rows,
                   c + j * kUnitColumns,
                   step});
      else
        exact_column(with, p, {column, row0, rows, c + j * kUnitColumns, step, c + memory.c_floats});
    }
    finish(p, c, step, row0, rows, first * kUnitColumns);
  });
}

}  // namespace headwise::cpu
