#include "headwise/kernels/cpu/stored/parts.h"

#include <algorithm>

#include "headwise/base/arena.h"
#include "headwise/kernels/cpu/stored/columns.h"
#include "headwise/kernels/cpu/stored/layout.h"

namespace headwise::cpu::stored {
namespace {

constexpr Index kMostRows = 128, kMostColumns = 12, kAtOnce = 4;  // of one task; columns of units
constexpr Index kMostBytes = Index{1} << 23;                      // of rows in parts

/// How a product is cut into tasks; cuts change no bits.
struct Cut {
  Index held;  // rows that are in parts at once
  Index rows, columns, column_blocks;
};
Cut cut_of(const Product& p, int threads) {
  const Index all = max_of(p.m, 1);
  const Index held = min_of(all, max_of(kMostRows, kMostBytes / bytes_in_parts(p.k) / kMostRows * kMostRows));
  const Index columns = ceil_div(p.n, Index{kUnitColumns}), rows = min_of(kMostRows, held);
  const Index wanted = threads == 1 ? 1 : 4 * Index{threads};
  Index each = max_of(1, min_of(kMostColumns, columns * ceil_div(held, rows) / wanted));
  if (each > kAtOnce) each -= each % kAtOnce;
  return {held, rows, each, ceil_div(columns, each)};
}

struct Memory {
  std::byte* x = nullptr;         // rows in parts
  std::uint8_t* taken = nullptr;  // rows that tiles take
  std::byte* scratch = nullptr;   // of each thread, as are those below
  float* c = nullptr;
  float* wide = nullptr;
  float* column = nullptr;
  std::uint16_t* apart = nullptr;
};
Memory lay_out(Arena& arena, const Product& p, const Cut& cut, int threads) {
  Memory m;
  m.x = arena.take<std::byte>("stored.x", cut.held * bytes_in_parts(p.k));
  m.taken = arena.take<std::uint8_t>("stored.taken", cut.held);
  m.scratch = arena.take<std::byte>("stored.scratch", threads * kPartsScratch);
  m.c = arena.take<float>("stored.c", threads * cut.rows * cut.columns * kUnitColumns);
  m.wide = arena.take<float>("stored.wide", threads * kStoredWide);
  m.column = arena.take<float>("stored.column", threads * cut.rows * kUnitColumns);
  m.apart = arena.take<std::uint16_t>("stored.apart", threads * kMostColumns);
  return m;
}

struct Run {
  const Product& p;
  const StoredParts& parts;
  const StoredCore& chain;
  Cut cut;
  Memory memory;
  Index row_bytes = bytes_in_parts(p.k), column_bytes = p.k * kUnits[static_cast<int>(p.format)].bytes;

  /// Rows first .. first + count - 1 of p.
  void rows(Index first, Index count, ThreadPool& pool) const noexcept {
    const Index groups = ceil_div(count, kPartsGroup), row_blocks = ceil_div(count, cut.rows);
    const auto split_group = [&](Index group, int) noexcept { split(first, count, group * kPartsGroup); };
    if (groups == 1)
      split_group(0, 0);
    else
      pool.parallel_for(groups, split_group);
    pool.parallel_for(row_blocks * cut.column_blocks, [&](Index task, int worker) noexcept {
      const Index row0 = task % row_blocks * cut.rows, rows = min_of(cut.rows, count - row0);
      multiply(first + row0, row0, rows, task / row_blocks * cut.columns, worker);
    });
  }
  void split(Index first, Index count, Index row0) const noexcept {
    const Index live = min_of(kPartsGroup, count - row0);
    for (Index i = 0; i < live; ++i)
      memory.taken[row0 + i] = parts.split(p.x + (first + row0 + i) * p.x_step, p.k, live,
                                           memory.x + row0 * row_bytes + i * kPartsLine);
  }
  /// Rows of p from `row` on, which are held from `held` on, and columns of units from `column` on.
  void multiply(Index row, Index held, Index rows, Index column, int worker) const noexcept {
    const Index columns = min_of(cut.columns, ceil_div(p.n, Index{kUnitColumns}) - column);
    const Index step = columns * kUnitColumns;
    float* c = memory.c + worker * cut.rows * cut.columns * kUnitColumns;
    std::uint16_t* apart = memory.apart + worker * kMostColumns;
    const std::byte* units = p.units + column * column_bytes;
    parts.multiply({.unit = units,
                    .columns = columns,
                    .unit_bytes = column_bytes,
                    .k = p.k,
                    .x = memory.x + held * row_bytes,
                    .rows = rows,
                    .c = c,
                    .c_step = step,
                    .scratch = memory.scratch + worker * kPartsScratch,
                    .apart = apart});
    const ColumnsTask task{
        units, column_bytes, columns, row, rows, c, step, memory.wide + worker * kStoredWide};
    take_over(task, memory.taken + held, apart, memory.column + worker * cut.rows * kUnitColumns);
    finish(p, c, step, row, rows, column * kUnitColumns);
  }
  /// Sums that tiles have no room for: whole rows, and single outputs of the others.
  void take_over(const ColumnsTask& t, const std::uint8_t* taken, const std::uint16_t* apart,
                 float* column) const noexcept {
    for (Index i = 0; i < t.rows; ++i) {
      if (taken[i]) continue;
      ColumnsTask row = t;
      row.row0 += i, row.rows = 1, row.c += i * t.c_step;
      chain_columns(chain, p, row);
    }
    for (Index j = 0; j < t.columns; ++j) {
      if (apart[j] == 0) continue;
      ColumnsTask one = t;
      one.first += j * t.column_bytes, one.columns = 1, one.c = column, one.c_step = kUnitColumns;
      chain_columns(chain, p, one);
      for (Index i = 0; i < t.rows; ++i)
        for (Index n = 0; n < kUnitColumns; ++n)
          if (apart[j] >> n & 1) t.c[i * t.c_step + j * kUnitColumns + n] = column[i * kUnitColumns + n];
    }
  }
};

}  // namespace

std::size_t workspace_in_parts(const Product& p, int threads) {
  Arena arena = Arena::measuring();
  lay_out(arena, p, cut_of(p, threads), threads);
  return arena.used();
}

void run_in_parts(const Product& p, const StoredParts& parts, const StoredCore& chain,
                  std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  const Cut cut = cut_of(p, pool.threads());
  Arena arena(workspace);
  const Run all{p, parts, chain, cut, lay_out(arena, p, cut, pool.threads())};
  for (Index first = 0; first < p.m; first += cut.held) all.rows(first, min_of(cut.held, p.m - first), pool);
}

}  // namespace headwise::cpu::stored
