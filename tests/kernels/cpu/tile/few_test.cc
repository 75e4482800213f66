// Few query rows without tiles: the bits of the tiles, numbers of every size among them.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <functional>

#include "headwise/kernels/cpu/isa/levels.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

using cpu::Core;
using Bend = std::function<void(std::vector<float>&)>;  // makes some numbers unusual

std::vector<float> numbers(Index count, std::uint64_t seed, const Bend& bend) {
  Tensor t = random_normal({count}, DType::f32, seed);
  const auto* x = static_cast<const float*>(t.view().data);
  std::vector<float> all(x, x + count);
  bend(all);
  return all;
}
/// As rows of `type`, each after a gap.
struct Table {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
  cpu::Rows rows;
  Table(Index count, Index columns, DType type, std::uint64_t seed, const Bend& bend, Index gap = 16) {
    f32 = numbers(count * (columns + gap), seed, bend);
    for (const float x : f32) {
      const headwise::bf16 y(x);
      bf16.push_back(y.bits);
    }
    rows.data = type == DType::bf16 ? static_cast<const void*>(bf16.data()) : f32.data();
    rows.row_step = columns + gap, rows.end = columns;
    rows.type = type == DType::bf16 ? cpu::RowType::bf16 : cpu::RowType::f32;
  }
};

const Bend kAsTheyAre = [](std::vector<float>&) {};

struct Sizes {
  int count;
  Index dim, value_dim, from, to;
};
struct Bends {
  const Bend &q = kAsTheyAre, &k = kAsTheyAre, &v = kAsTheyAre;
};
/// Scores of `count` rows, then their sums of values, with keys in the lanes and on tiles.
void compare(const Core& c, DType dtype, const Sizes& sizes, const Bends& bends, float factor) {
  const auto [count, dim, value_dim, from, to] = sizes;
  const Table q(count, dim, dtype, 1, bends.q), k(to + 3, dim, dtype, 2, bends.k),
      v(to + 3, value_dim, dtype, 3, bends.v);
  const auto panel = static_cast<std::size_t>(c.panel), granule = static_cast<std::size_t>(c.granule);
  const auto wide = static_cast<std::size_t>(round_up(value_dim, 32));
  Buffer queries(static_cast<std::size_t>(c.products.query_bytes(dim))),
      keys(static_cast<std::size_t>(c.products.key_bytes(dim))),
      values(static_cast<std::size_t>(c.products.value_bytes(value_dim))),
      weights(static_cast<std::size_t>(c.products.weight_bytes()));
  std::vector<float> gather(panel * static_cast<std::size_t>(round_up(dim, 16))), few(panel * granule),
      tiles(panel * granule), sums(panel * wide), o(panel * wide), o_few(panel * wide);
  const std::vector<cpu::Rows> q_rows(panel, q.rows);
  std::vector<Index> row(panel);
  for (std::size_t i = 0; i < panel; ++i) row[i] = std::min<Index>(static_cast<Index>(i), count - 1);
  c.begin();
  c.products.pack_queries(q_rows.data(), row.data(), count, dim, queries.data(), gather.data());
  c.products.pack_keys(k.rows, 3, to, dim, keys.data());
  c.products.scores(queries.data(), keys.data(), from, to, dim, tiles.data());
  Buffer scratch(static_cast<std::size_t>(c.products.key_bytes(dim)));
  c.few.scores({.queries = queries.data(),
                .count = count,
                .keys = k.rows,
                .first = 3,
                .from = from,
                .to = to,
                .dim = dim,
                .ahead = {},
                .scratch = scratch.data()},
               few.data());
  for (Index key = from; key < to; ++key)
    for (int lane = 0; lane < count; ++lane) {
      const auto at = static_cast<std::size_t>(key * c.panel + lane);
      if (std::isnan(few[at]) && std::isnan(tiles[at])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(few[at]), std::bit_cast<std::uint32_t>(tiles[at]))
          << "score of key " << key << ", row " << lane << ": " << few[at] << " and " << tiles[at];
    }
  // Weights that are all over the range of exponents; values that are not usual leave it to the tiles.
  std::vector<float> top(panel), factors(panel, factor), sum(panel), shrink(panel, 0.75f);
  for (int lane = 0; lane < count; ++lane) {
    top[static_cast<std::size_t>(lane)] = -INFINITY;
    for (Index key = from; key < to; ++key) {
      float& s = few[static_cast<std::size_t>(key * c.panel + lane)];
      if (!std::isfinite(s)) s = 0;
      top[static_cast<std::size_t>(lane)] = std::max(top[static_cast<std::size_t>(lane)], s);
    }
  }
  const cpu::Tile tile{few.data(), weights.data(), from, to, top.data(), factors.data(), sum.data(), count};
  c.passes.weights(tile);
  for (std::size_t i = 0; i < o.size(); ++i) o[i] = 0.01f * static_cast<float>(i % 97);
  for (Index r = 0; r < count; ++r)
    for (Index d = 0; d < value_dim; ++d)
      o_few[static_cast<std::size_t>(r * value_dim + d)] = o[static_cast<std::size_t>(d * c.panel + r)];
  const std::vector<float> before = o_few;
  const bool usual = c.products.pack_values(v.rows, 3, to, value_dim, values.data());
  c.products.weigh(tile, values.data(), value_dim, shrink.data(), o.data());
  const bool taken = c.few.weigh(tile, {.count = count,
                                        .values = v.rows,
                                        .first = 3,
                                        .value_dim = value_dim,
                                        .shrink = shrink.data(),
                                        .ahead = {},
                                        .sums = sums.data(),
                                        .o = o_few.data()});
  c.end();
  if (from == 0) {
    EXPECT_EQ(taken, usual);
  }
  for (Index r = 0; r < count; ++r)
    for (Index d = 0; d < value_dim; ++d) {
      const auto at = static_cast<std::size_t>(r * value_dim + d);
      const float want = taken ? o[static_cast<std::size_t>(d * c.panel + r)] : before[at];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(o_few[at]), std::bit_cast<std::uint32_t>(want))
          << "column " << d << ", row " << r << ": " << o_few[at] << " and " << want;
    }
}

void each_core(const std::function<void(const Core&, DType)>& f) {
  bool some = false;
  for (const cpu::IsaLevel& level : cpu::isa_levels()) {
    if (!level.supported()) continue;
    const cpu::TileKernels& kernels = *level.kernels();
    for (const Core* c : {kernels.bf16, kernels.f32_parts}) {
      if (!c || !c->few.scores) continue;
      SCOPED_TRACE(testing::Message() << level.name << ' ' << c->name);
      some = true;
      f(*c, c == kernels.bf16 ? DType::bf16 : DType::f32);
    }
  }
  if (!some) GTEST_SKIP() << "no level of this CPU has few rows beside tiles";
}

/// Every `step`-th number gets the given one.
Bend some(float x, std::size_t step) {
  return [=](std::vector<float>& all) {
    for (std::size_t i = step / 2; i < all.size(); i += step) all[i] = i & 1 ? x : -x;
  };
}
Bend times(float by) {
  return [=](std::vector<float>& all) {
    for (float& x : all) x *= by;
  };
}

TEST(Few, TheBitsOfTilesAtEverySize) {
  each_core([](const Core& c, DType dtype) {
    for (int count = 1; count <= c.few.rows; ++count)
      for (const Index dim : {1, 16, 40, 128})
        for (const Index value_dim : {16, 48, 128})
          for (const Index to : {Index{1}, Index{17}, Index{100}, Index{c.granule}}) {
            SCOPED_TRACE(testing::Message()
                         << count << " rows, dim " << dim << " value_dim " << value_dim << " keys " << to);
            compare(c, dtype, {count, dim, value_dim, to > 64 ? 32 : 0, to}, {}, 0.1f);
          }
  });
}

TEST(Few, TheBitsOfChainsWithKeysInTheLanes) {
  for (const cpu::IsaLevel& level : cpu::isa_levels()) {
    if (!level.supported() || !level.kernels()->few) continue;
    const Core& c = *level.kernels()->few;
    for (const int count : {1, 2, 3, 5, 8, 9})  // up to 8 queries meet whole blocks of 16 keys in registers
      for (const Index dim : {16, 40, 128})
        for (const Index to : {17, 100}) {
          if (count > c.panel) continue;
          SCOPED_TRACE(testing::Message()
                       << level.name << ' ' << count << " rows, dim " << dim << " keys " << to);
          compare(c, DType::f32, {count, dim, 48, to > 64 ? 32 : 0, to}, {}, 0.1f);
        }
  }
}

TEST(Few, TheBitsOfTilesOnNumbersOfEverySize) {
  // 0x1.fffffep-127 is the largest denormal: the bf16 nearest to it is the smallest normal number.
  const Bend bends[] = {
      kAsTheyAre,         some(0, 3),         some(0x1p-140f, 5),   some(0x1.fffffcp-127f, 7),
      some(0x1p-110f, 5), some(0x1p60f, 700), times(0x1p-60f),      times(0x1p-120f),
      times(0x1p-45f),    times(0x1p45f),     some(INFINITY, 1500), some(NAN, 1500),
      some(0x1p-125f, 2)};
  each_core([&](const Core& c, DType dtype) {
    int i = 0;
    for (const Bend& q : bends)
      for (const Bend& k : bends) {
        SCOPED_TRACE(testing::Message() << "pair " << i++);
        for (const Bend& v : {k, q})
          for (const int count : {1, 3})
            compare(c, dtype, {count, 72, 48, 0, 90}, {q, k, v}, i % 2 ? 0.1f : 9.0f);
      }
  });
}

}  // namespace
}  // namespace headwise::test
