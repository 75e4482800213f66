#include <cmath>
#include <cstring>

#include "headwise/kernels/cpu/isa/levels.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

using cpu::Core;

/// State of one panel, and memory for its tiles.
struct Desk {
  Buffer queries, keys, values, weights;
  std::vector<float> s, top, sum, o, factor, used, shrink, tile_top, tile_sum;

  Desk(const Core& c, Index dim, Index value_dim)
      : queries(static_cast<std::size_t>(c.products.query_bytes(dim))),
        keys(static_cast<std::size_t>(c.products.key_bytes(dim))),
        values(static_cast<std::size_t>(c.products.value_bytes(value_dim))),
        weights(static_cast<std::size_t>(c.products.weight_bytes())) {
    const auto n = static_cast<std::size_t>(c.panel);
    s.resize(n * static_cast<std::size_t>(c.granule));
    o.resize(n * static_cast<std::size_t>(round_up(value_dim, 16)));
    for (auto* lane : {&top, &sum, &factor, &used, &shrink, &tile_top, &tile_sum}) lane->resize(n);
    for (std::size_t i = 0; i < n; ++i) top[i] = -INFINITY, factor[i] = 0.1f + 0.01f * static_cast<float>(i);
  }
};

/// Stripes of several panels against the single steps of each, as integers.
void compare(const Core& c, DType dtype, Index dim, Index value_dim, Index keys, Index panels, bool masked) {
  Tensor q = random_normal({panels * c.panel, dim}, dtype, 1);
  Tensor k = random_normal({2 * c.granule, dim}, dtype, 2);
  Tensor v = random_normal({2 * c.granule, value_dim}, dtype, 3);
  const cpu::RowType type = dtype == DType::bf16 ? cpu::RowType::bf16 : cpu::RowType::f32;
  const auto rows_of = [&](const Tensor& t, Index columns) {
    return cpu::Rows{t.view().data, columns, 1, 0, columns, type};
  };
  std::vector<Desk> one, many;
  std::vector<float> gather(static_cast<std::size_t>(c.panel * round_up(dim, 16)));
  for (Index i = 0; i < panels; ++i) {
    one.emplace_back(c, dim, value_dim);
    const std::vector<cpu::Rows> rows(static_cast<std::size_t>(c.panel), rows_of(q, dim));
    std::vector<Index> row;
    for (Index lane = 0; lane < c.panel; ++lane) row.push_back(i * c.panel + lane);
    for (auto* desks : {&one, &many}) {
      if (desks == &many) many.emplace_back(c, dim, value_dim);
      c.products.pack_queries(rows.data(), row.data(), c.panel, dim, desks->back().queries.data(),
                              gather.data());
    }
  }
  Desk& shared = many[0];
  c.begin();
  for (Index granule = 0; granule < 2; ++granule) {  // two, so that running tops move
    c.products.pack_keys(rows_of(k, dim), granule * c.granule, keys, dim, shared.keys.data());
    ASSERT_TRUE(c.products.pack_values(rows_of(v, value_dim), granule * c.granule, keys, value_dim,
                                       shared.values.data()));
    std::vector<std::uint64_t> open(static_cast<std::size_t>(keys));
    for (Index key = 0; key < keys; ++key)
      open[static_cast<std::size_t>(key)] = 0x9e3779b97f4a7c15u >> (key % 7);
    std::vector<cpu::Stripe> stripes;
    for (Index i = 0; i < panels; ++i) {
      const Index from = masked && keys > 32 && i % 2 == 1 ? 32 : 0, to = masked ? keys - i % 3 : keys;
      if (from >= to) continue;
      const std::uint64_t* bits = masked && i != 1 ? open.data() : nullptr;
      Desk &a = one[static_cast<std::size_t>(i)], &b = many[static_cast<std::size_t>(i)];
      c.products.scores(a.queries.data(), shared.keys.data(), from, to, dim, a.s.data());
      if (bits) c.passes.select(a.s.data(), from, to, bits);
      std::fill(a.tile_top.begin(), a.tile_top.end(), -INFINITY);
      c.passes.row_max(a.s.data(), from, to, a.tile_top.data());
      c.passes.advance(a.top.data(), a.tile_top.data(), a.factor.data(), a.used.data(), a.shrink.data());
      const cpu::Tile tile{a.s.data(),      a.weights.data(), from, to, a.used.data(),
                           a.factor.data(), a.tile_sum.data()};
      c.passes.weights(tile);
      for (std::size_t lane = 0; lane < a.sum.size(); ++lane)
        a.sum[lane] = std::fma(a.sum[lane], a.shrink[lane], a.tile_sum[lane]);
      c.products.weigh(tile, shared.values.data(), value_dim, a.shrink.data(), a.o.data());
      stripes.push_back({b.queries.data(), from, to, bits, b.factor.data(), b.top.data(), b.sum.data(),
                         b.o.data(), nullptr, nullptr, 0});
    }
    const auto ahead = [&](const Tensor& t, Index columns) {
      const Index bytes = columns * size_of(dtype);
      return cpu::Ahead{t.view().data, bytes, bytes, granule == 0 ? 2 * c.granule : 0};
    };
    const cpu::Next next{ahead(k, dim), ahead(v, value_dim)};
    c.products.stripes({.list = stripes.data(),
                        .count = static_cast<Index>(stripes.size()),
                        .keys = shared.keys.data(),
                        .values = shared.values.data(),
                        .dim = dim,
                        .value_dim = value_dim,
                        .next = next,
                        .s = shared.s.data(),
                        .p = shared.weights.data()});
  }
  c.end();
  for (Index i = 0; i < panels; ++i) {
    const Desk &a = one[static_cast<std::size_t>(i)], &b = many[static_cast<std::size_t>(i)];
    EXPECT_EQ(0, std::memcmp(a.top.data(), b.top.data(), a.top.size() * 4)) << "top of panel " << i;
    EXPECT_EQ(0, std::memcmp(a.sum.data(), b.sum.data(), a.sum.size() * 4)) << "sum of panel " << i;
    EXPECT_EQ(0, std::memcmp(a.o.data(), b.o.data(), a.o.size() * 4)) << "o of panel " << i;
  }
}

TEST(Stripes, TheBitsOfSingleSteps) {
  for (const cpu::IsaLevel& level : cpu::isa_levels()) {
    if (!level.supported()) continue;
    const cpu::TileKernels& kernels = *level.kernels();
    for (const Core* c : {&kernels.f32, kernels.narrow, kernels.bf16, kernels.f32_parts}) {
      if (!c || !c->products.stripes) continue;
      // Matrix cores work on several panels and blocks of dim and value_dim at once.
      const bool tiles = c == kernels.bf16 || c == kernels.f32_parts;
      for (const Index dim : tiles ? std::vector<Index>{1, 32, 40, 64, 128} : std::vector<Index>{1, 40})
        for (const Index value_dim :
             tiles ? std::vector<Index>{1, 16, 33, 64, 160} : std::vector<Index>{1, 33})
          for (const Index keys : {Index{1}, Index{31}, Index{64}, Index{c->granule}})
            for (const Index panels : tiles ? std::vector<Index>{1, 2, 5} : std::vector<Index>{3}) {
              SCOPED_TRACE(testing::Message()
                           << level.name << ' ' << c->name << " dim " << dim << " value_dim " << value_dim
                           << " keys " << keys << " panels " << panels);
              for (const bool masked : {false, true})
                compare(*c, c == kernels.bf16 ? DType::bf16 : DType::f32, dim, value_dim, keys, panels,
                        masked);
            }
    }
  }
}

}  // namespace
}  // namespace headwise::test
