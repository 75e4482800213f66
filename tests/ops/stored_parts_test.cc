// bf16 weights by matrix tiles: rows in parts, with a model of AMX on every machine and AMX itself where it
// is.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string_view>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/stored/stored.h"
#include "tests/ops/parts_model.h"

namespace headwise {
namespace {

using cpu::StoredParts;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

struct Case {
  Index n, k, m;
  std::vector<std::uint16_t> w;  // [n k] of bf16
  std::vector<float> x;          // [m k]
  Case(Index outputs, Index depth, Index rows, unsigned seed)
      : n(outputs), k(depth), m(rows), w(at(n * k)), x(at(m * k)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::uint16_t& v : w) v = bf16(normal(random) * 0.05f).bits;
    for (float& v : x) v = normal(random);
  }
  float weight(Index output, Index i) const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(w[at(output * k + i)]) << 16);
  }
};

/// The first `rows` of a case; parts: none are taken below level amx.
std::vector<float> product(const Case& c, Index rows, const StoredParts* parts, int threads = 2) {
  Context ctx({.threads = threads});
  constexpr StoredFormat kFormat = StoredFormat::bf16;
  Buffer units(cpu::stored::bytes_of(kFormat, c.n, c.k) + 128);
  std::byte* to = units.data() + (128 - reinterpret_cast<std::uintptr_t>(units.data()) % 128) % 128;
  cpu::stored::pack(kFormat, c.k, 0, c.n, reinterpret_cast<const std::byte*>(c.w.data()), to);
  std::vector<float> out(at(rows * c.n), -1);
  const cpu::stored::Product p{.format = kFormat,
                               .units = to,
                               .m = rows,
                               .n = c.n,
                               .k = c.k,
                               .x = c.x.data(),
                               .x_step = c.k,
                               .out = out.data(),
                               .out_step = c.n,
                               .parts = parts};
  cpu::stored::run(p, ctx.workspace(cpu::stored::workspace_of(p, threads)), ctx.pool());
  return out;
}
/// The chains of fused products that every level but amx has.
std::vector<float> chains(const Case& c, Index rows) {
  cpu::force_isa(cpu::isa_levels().data());  // plain
  auto out = product(c, rows, nullptr);
  cpu::force_isa(nullptr);
  return out;
}
bool same(const float* a, const float* b, Index n) { return std::memcmp(a, b, at(n) * 4) == 0; }

constexpr StoredParts kModel = cpu::PartsModel::table();

const cpu::IsaLevel* amx() {
  for (const cpu::IsaLevel& level : cpu::isa_levels())
    if (std::string_view(level.name) == "amx" && level.supported()) return &level;
  return nullptr;
}

TEST(StoredParts, PartsAddUpToTheirNumber) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float x = std::ldexp(1 + static_cast<float>(bits & 0x7fffffu) * 0x1p-23f,
                               static_cast<int>(bits >> 24) % 140 - 90) *
                    (bits >> 23 & 1 ? -1.0f : 1.0f);
    std::uint16_t part[3];
    cpu::PartsModel::parts_of(x, part);
    double sum = 0;
    for (const std::uint16_t p : part) sum += static_cast<double>(cpu::PartsModel::wide(p));
    ASSERT_EQ(sum, static_cast<double>(x)) << x;
  }
}

TEST(StoredParts, BitsOfARowDependOnItAndTheWeights) {
  for (const auto& [n, k] : {std::pair<Index, Index>{213, 96}, {48, 577}, {7, 31}}) {
    const Case c(n, k, 150, 7);
    const auto all = product(c, 150, &kModel, 3);
    for (const Index rows : {1, 2, 3, 8, 15, 16, 17, 33, 128, 130})
      for (const int threads : {1, 2})
        EXPECT_TRUE(same(product(c, rows, &kModel, threads).data(), all.data(), rows * n))
            << n << " " << k << ": " << rows << " rows, " << threads << " threads";
    for (const Index row : {5, 127, 129, 149}) {
      Case one = c;
      one.x.assign(c.x.begin() + row * k, c.x.begin() + (row + 1) * k);
      EXPECT_TRUE(same(product(one, 1, &kModel).data(), all.data() + row * n, n)) << "row " << row;
    }
  }
}

/// Against sums in double: no further off than chains of fused products, largest and together.
TEST(StoredParts, ErrorsAreThoseOfChainsOrLess) {
  for (const Index k : {64, 576, 1536}) {
    const Case c(64, k, 20, 9);
    const auto y = product(c, c.m, &kModel), z = chains(c, c.m);
    double most[2] = {}, sum[2] = {};
    for (Index r = 0; r < c.m; ++r)
      for (Index o = 0; o < c.n; ++o) {
        double truth = 0;
        for (Index i = 0; i < k; ++i)
          truth += static_cast<double>(c.x[at(r * k + i)]) * static_cast<double>(c.weight(o, i));
        for (int way = 0; way < 2; ++way) {
          const double error = std::fabs(static_cast<double>((way ? z : y)[at(r * c.n + o)]) - truth);
          most[way] = std::max(most[way], error), sum[way] += error * error;
        }
      }
    EXPECT_LE(sum[0], sum[1]) << k;
    EXPECT_LE(most[0], 1.2 * most[1]) << k;
    EXPECT_GT(sum[0], 0) << "sums are rounded";
  }
}

/// What tiles flush or overflow: such rows and outputs are chains, and no other row or output notices.
TEST(StoredParts, WhatIsNotOrdinaryIsAChain) {
  const Case plain(40, 70, 40, 5);
  const auto before = product(plain, plain.m, &kModel);
  const float kRows[] = {INFINITY, -INFINITY, NAN, 0x1p50f, 3e38f};
  const std::uint16_t kWeights[] = {0x7f80, 0xff80, 0x7fc0, 0x5880};
  Case c = plain;
  for (Index i = 0; i < 5; ++i) c.x[at(7 * i * c.k + 3 * i)] = kRows[i];
  for (Index i = 0; i < 4; ++i) c.w[at((9 * i + 2) * c.k + i)] = kWeights[i];
  for (Index i = 0; i < c.k; ++i) {
    c.x[at(36 * c.k + i)] *= 0x1p-60f, c.x[at(37 * c.k + i)] = 0x1p-140f, c.x[at(38 * c.k + i)] = 0;
    c.w[at(39 * c.k + i)] = 0x0001, c.w[at(38 * c.k + i)] = 0;  // the smallest; zeros
  }
  const auto after = product(c, c.m, &kModel), chain = chains(c, c.m);
  const auto apart = [&](Index i, std::initializer_list<Index> which) {
    return std::find(which.begin(), which.end(), i) != which.end();
  };
  for (Index r = 0; r < c.m; ++r)
    for (Index o = 0; o < c.n; ++o) {
      const std::size_t i = at(r * c.n + o);
      const bool is_chain = apart(r, {0, 7, 14, 21, 28, 36, 37}) || apart(o, {2, 11, 20, 29, 39});
      const float other = is_chain ? chain[i] : before[i];
      if (apart(r, {38}) || apart(o, {38}))
        EXPECT_EQ(std::isnan(after[i]), std::isnan(chain[i])) << r << " " << o;
      else if (std::isnan(other))
        EXPECT_TRUE(std::isnan(after[i])) << r << " " << o;
      else
        EXPECT_EQ(after[i], other) << r << " " << o;
    }
  EXPECT_EQ(after[at(38 * c.n)], 0);
}

TEST(StoredParts, TilesHaveTheBitsOfTheirModel) {
  const cpu::IsaLevel* level = amx();
  const char* set = std::getenv("HEADWISE_AMX_WEIGHTS");
  if (level == nullptr || set == nullptr || std::string_view(set) != "1")
    GTEST_SKIP() << "needs AMX and HEADWISE_AMX_WEIGHTS=1";
  for (const auto& [n, k, m] : std::vector<std::array<Index, 3>>{
           {213, 576, 150}, {48, 577, 40}, {16, 32, 1}, {7, 31, 17}, {80, 1536, 5}}) {
    Case c(n, k, m, 13);
    for (const bool wild : {false, true}) {
      std::mt19937 random(1);
      for (std::size_t i = 0; wild && i < c.x.size(); ++i)
        c.x[i] = std::ldexp(c.x[i], static_cast<int>(random() % 100) - 60);
      cpu::force_isa(level);
      const auto here = product(c, m, nullptr), model = product(c, m, &kModel);
      cpu::force_isa(nullptr);
      EXPECT_TRUE(same(here.data(), model.data(), m * n)) << n << " " << k << " " << m << " " << wild;
    }
  }
}

}  // namespace
}  // namespace headwise
