// The code of stored bf16 on AMX tiles, its instructions written out: the bits of the model in every shape.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "headwise/base/half.h"
#include "headwise/kernels/cpu/stored/amx_parts.h"
#include "tests/ops/parts_model.h"

namespace headwise::cpu {
namespace {

constexpr StoredParts kTiles{stored::AmxParts::split, stored::AmxParts::multiply};

struct Numbers {
  Index k, columns, rows;
  std::vector<std::uint16_t> w;
  std::vector<float> x;
};
struct Result {
  std::vector<std::byte> lines;
  std::vector<bool> taken;
  std::vector<float> c;
  std::vector<std::uint16_t> apart;
};

/// wild: of all sizes; hostile: some are not finite or tiny.
Numbers numbers(Index k, Index columns, Index rows, bool wild, bool hostile) {
  std::mt19937 random(static_cast<unsigned>(k + columns + rows));
  std::normal_distribution<float> normal;
  Numbers n{k, columns, rows, {}, {}};
  const auto size = [&] { return wild ? static_cast<int>(random() % 130) - 86 : 0; };
  for (Index i = 0; i < k * columns * kUnitColumns; ++i)
    n.w.push_back(bf16(std::ldexp(normal(random), size())).bits);
  for (Index i = 0; i < k * rows; ++i) n.x.push_back(std::ldexp(normal(random), size()));
  for (int i = 0; hostile && i < 5; ++i) {
    n.x[random() % n.x.size()] = i % 2 ? NAN : INFINITY;
    n.w[random() % n.w.size()] = i % 2 ? 0x7f80 : 0x0001;
  }
  return n;
}
Result run(const Numbers& n, const StoredParts& with) {
  const auto rows = static_cast<std::size_t>(n.rows),
             row_bytes = static_cast<std::size_t>(bytes_in_parts(n.k));
  Result r{std::vector<std::byte>(rows * row_bytes), {}, {}, {}};
  for (Index row = 0; row < n.rows; ++row) {
    const Index group = row / kPartsGroup * kPartsGroup, live = std::min(kPartsGroup, n.rows - group);
    r.taken.push_back(with.split(n.x.data() + row * n.k, n.k, live,
                                 r.lines.data() + group * bytes_in_parts(n.k) + (row - group) * kPartsLine));
  }
  r.c.assign(rows * static_cast<std::size_t>(n.columns * kUnitColumns), -1);
  r.apart.assign(static_cast<std::size_t>(n.columns), 0xaaaa);
  alignas(64) static std::byte scratch[kPartsScratch];
  with.multiply({.unit = reinterpret_cast<const std::byte*>(n.w.data()),
                 .columns = n.columns,
                 .unit_bytes = n.k * kUnitColumns * 2,
                 .k = n.k,
                 .x = r.lines.data(),
                 .rows = n.rows,
                 .c = r.c.data(),
                 .c_step = n.columns * kUnitColumns,
                 .scratch = scratch,
                 .apart = r.apart.data()});
  return r;
}

TEST(StoredTiles, HaveTheBitsOfTheirModel) {
  for (const auto& [k, columns, rows] : std::vector<std::array<Index, 3>>{{32, 1, 1},
                                                                          {64, 4, 1},
                                                                          {577, 5, 3},
                                                                          {300, 2, 16},
                                                                          {100, 7, 17},
                                                                          {31, 4, 40},
                                                                          {290, 3, 130},
                                                                          {2, 1, 5}})
    for (const int kind : {0, 1, 2}) {
      const Numbers n = numbers(k, columns, rows, kind == 1, kind == 2);
      const Result a = run(n, kTiles), b = run(n, PartsModel::table());
      EXPECT_TRUE(a.lines == b.lines) << k << " " << columns << " " << rows << " " << kind;
      EXPECT_TRUE(a.taken == b.taken && a.apart == b.apart)
          << k << " " << columns << " " << rows << " " << kind;
      for (std::size_t i = 0; i < a.c.size(); ++i)
        ASSERT_TRUE((std::isnan(a.c[i]) && std::isnan(b.c[i])) ||
                    std::bit_cast<std::uint32_t>(a.c[i]) == std::bit_cast<std::uint32_t>(b.c[i]))
            << k << " " << columns << " " << rows << " " << kind << ": " << a.c[i] << " " << b.c[i];
    }
}

}  // namespace
}  // namespace headwise::cpu
