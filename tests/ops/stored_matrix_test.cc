// StoredMatrix: every format against sums in double; bits whatever the rows, threads and ISA level.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/projection/stored_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/model/gguf/blocks.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

constexpr StoredFormat kAll[] = {StoredFormat::f32,  StoredFormat::f16,  StoredFormat::bf16,
                                 StoredFormat::q4_0, StoredFormat::q4_1, StoredFormat::q5_0,
                                 StoredFormat::q8_0, StoredFormat::q4_k, StoredFormat::q6_k};

const GgufFormat& file_format(StoredFormat f) {
  static constexpr std::uint32_t kTypes[] = {0, 1, 30, 2, 3, 6, 8, 12, 14};
  return *find_gguf_format(kTypes[static_cast<int>(f)]);
}

/// Random codes with scales that are small finite numbers.
std::vector<std::byte> random_rows(StoredFormat f, Index rows, Index in, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  const StoredFacts& facts = facts_of(f);
  std::vector<std::byte> all(static_cast<std::size_t>(rows * in / facts.numbers * facts.bytes));
  const auto half = [&](std::byte* to) {
    const f16 h(normal(random));
    std::memcpy(to, &h.bits, 2);
  };
  for (std::byte& b : all) b = static_cast<std::byte>(random());
  for (std::size_t b = 0; b < all.size(); b += static_cast<std::size_t>(facts.bytes)) {
    std::byte* at = all.data() + b;
    if (f == StoredFormat::f32) {
      const float x = normal(random);
      std::memcpy(at, &x, 4);
    } else if (f == StoredFormat::bf16) {
      const bf16 x(normal(random));
      std::memcpy(at, &x.bits, 2);
    } else {
      half(f == StoredFormat::q6_k ? at + 208 : at);
      if (f == StoredFormat::q4_1 || f == StoredFormat::q4_k) half(at + 2);
    }
  }
  return all;
}

/// The weights as GGUF's reader gives them: written apart from the units.
std::vector<float> widened(StoredFormat f, const std::vector<std::byte>& rows) {
  const GgufFormat& file = file_format(f);
  std::vector<float> out(rows.size() / static_cast<std::size_t>(file.bytes) *
                         static_cast<std::size_t>(file.numbers));
  for (std::size_t b = 0; b < rows.size() / static_cast<std::size_t>(file.bytes); ++b)
    file.read(rows.data() + b * static_cast<std::size_t>(file.bytes),
              out.data() + b * static_cast<std::size_t>(file.numbers));
  return out;
}

StoredMatrix matrix(StoredFormat f, Index out, Index in, const std::vector<std::byte>& rows) {
  const Index each = in / facts_of(f).numbers * facts_of(f).bytes;
  return {f, out, in, [&](Index first, Index count, std::byte* to) {
            std::memcpy(to, rows.data() + first * each, static_cast<std::size_t>(count * each));
          }};
}

std::vector<float> product(const StoredMatrix& m, std::vector<float> x, Index rows, bool rounded,
                           int threads = 2) {
  Context ctx({.threads = threads});
  std::vector<float> out(static_cast<std::size_t>(rows * m.out()), -1);
  m.multiply({.rows = rows, .x = {x.data(), m.in()}, .out = {out.data(), m.out()}, .rounded = rounded}, ctx);
  return out;
}
std::vector<float> some_x(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}
bool same(const float* a, const float* b, Index n) {
  return std::memcmp(a, b, static_cast<std::size_t>(n) * 4) == 0;
}

/// Level amx may be asked to multiply bf16 by matrix tiles, in another order: stored_parts_test.cc.
bool has_own_bits(StoredFormat f, std::string_view level) {
  return f == StoredFormat::bf16 && level == "amx" && std::getenv("HEADWISE_AMX_WEIGHTS") != nullptr;
}

/// Parts are a numerics class of their own, which whoever keeps results must name.
TEST(StoredMatrix, SaysWhetherRowsMeetItInParts) {
  const char* asked = std::getenv("HEADWISE_AMX_WEIGHTS");
  const bool wanted =
      asked && std::string_view(asked) == "1" && std::string_view(cpu::chosen_isa().name) == "amx";
  for (const StoredFormat f : {StoredFormat::f32, StoredFormat::bf16, StoredFormat::f16}) {
    const std::vector<std::byte> zeros(32 * 32 * 4);
    EXPECT_EQ(matrix(f, 32, 32, zeros).in_parts(), wanted && f == StoredFormat::bf16);
  }
}

TEST(StoredMatrix, ExactProductsHaveTheBitsOfWideWeights) {
  for (const StoredFormat f : kAll)
    for (const auto& [out, in] : {std::pair<Index, Index>{40, 512}, {16, 256}, {7, 768}}) {
      const auto bytes = random_rows(f, out, in, 3);
      const auto wide = widened(f, bytes);
      std::vector<std::byte> plain(wide.size() * 4);
      std::memcpy(plain.data(), wide.data(), plain.size());
      const StoredMatrix m = matrix(f, out, in, bytes), w = matrix(StoredFormat::f32, out, in, plain);
      std::vector<float> row(static_cast<std::size_t>(in));
      for (Index r = 0; r < out; ++r) {
        m.read_row(r, row.data());
        EXPECT_TRUE(same(row.data(), wide.data() + r * in, in)) << name_of(f) << " row " << r;
      }
      for (const Index rows : {1, 3, 9}) {
        const auto x = some_x(rows * in, 5);
        const auto a = product(m, x, rows, false), b = product(w, x, rows, false);
        EXPECT_TRUE(has_own_bits(f, cpu::chosen_isa().name) || same(a.data(), b.data(), rows * out))
            << name_of(f) << " " << rows;
        for (Index r = 0; r < rows; ++r)
          for (Index o = 0; o < out; ++o) {
            double sum = 0, size = 0;
            for (Index i = 0; i < in; ++i) {
              const double p = static_cast<double>(x[static_cast<std::size_t>(r * in + i)]) *
                               static_cast<double>(wide[static_cast<std::size_t>(o * in + i)]);
              sum += p, size += std::fabs(p);
            }
            EXPECT_NEAR(a[static_cast<std::size_t>(r * out + o)], sum, 1e-6 * size + 1e-30) << name_of(f);
          }
      }
    }
}

/// The definition in double: rows rounded to 127 steps of their largest number of each 32.
std::vector<double> rounded_product(const std::vector<float>& x, const std::vector<float>& w, Index out,
                                    Index in) {
  std::vector<double> r(x.size());
  for (std::size_t g = 0; g < x.size(); g += 32) {
    float top = 0;
    for (std::size_t i = g; i < g + 32; ++i) top = std::max(top, std::fabs(x[i]));
    const double scale = static_cast<double>(top / 127.0f), inverse = static_cast<double>(127.0f / top);
    for (std::size_t i = g; i < g + 32; ++i)
      r[i] = scale *
             std::nearbyint(static_cast<double>(static_cast<float>(static_cast<double>(x[i]) * inverse)));
  }
  std::vector<double> y;
  for (std::size_t row = 0; row < x.size() / static_cast<std::size_t>(in); ++row)
    for (Index o = 0; o < out; ++o) {
      double sum = 0;
      for (Index i = 0; i < in; ++i)
        sum += r[row * static_cast<std::size_t>(in) + static_cast<std::size_t>(i)] *
               static_cast<double>(w[static_cast<std::size_t>(o * in + i)]);
      y.push_back(sum);
    }
  return y;
}

TEST(StoredMatrix, RoundedRowsFollowTheirDefinition) {
  for (const StoredFormat f : kAll) {
    if (!is_quantized(f)) continue;
    constexpr Index kOut = 40, kIn = 512, kRows = 7;
    const auto bytes = random_rows(f, kOut, kIn, 11);
    const StoredMatrix m = matrix(f, kOut, kIn, bytes);
    const auto wide = widened(f, bytes);
    const auto x = some_x(kRows * kIn, 6);
    const auto y = product(m, x, kRows, true);
    const auto truth = rounded_product(x, wide, kOut, kIn);
    double size = 0;
    for (const double t : truth) size = std::max(size, std::fabs(t));
    for (std::size_t i = 0; i < y.size(); ++i)
      EXPECT_NEAR(y[i], truth[i], 1e-5 * size) << name_of(f) << " " << i;
  }
}

/// 14 columns of units: whole tasks and a part, and every way a tile takes several columns at once.
TEST(StoredMatrix, BitsDependOnTheRowAlone) {
  constexpr Index kOut = 213, kIn = 768, kRows = 70;
  for (const StoredFormat f : kAll)
    for (const bool rounded : {false, true}) {
      if (rounded && !is_quantized(f)) continue;
      const StoredMatrix m = matrix(f, kOut, kIn, random_rows(f, kOut, kIn, 2));
      const auto x = some_x(kRows * kIn, 8);
      const auto all = product(m, x, kRows, rounded, 3);
      for (const Index row : {0, 1, 37, 69})
        for (const int threads : {1, 2}) {
          const std::vector<float> one(x.begin() + row * kIn, x.begin() + (row + 1) * kIn);
          EXPECT_TRUE(same(product(m, one, 1, rounded, threads).data(), all.data() + row * kOut, kOut))
              << name_of(f) << (rounded ? " rounded, row " : " row ") << row;
        }
      for (Index rows = 2; rows <= 13; ++rows) {
        const std::vector<float> some(x.begin(), x.begin() + rows * kIn);
        EXPECT_TRUE(same(product(m, some, rows, rounded, 1).data(), all.data(), rows * kOut))
            << name_of(f) << (rounded ? " rounded, " : " ") << rows << " rows";
      }
    }
}

TEST(StoredMatrix, BitsAreThoseOfEveryIsaLevel) {
  constexpr Index kOut = 213, kIn = 512, kRows = 9;
  for (const StoredFormat f : kAll)
    for (const bool rounded : {false, true}) {
      if (rounded && !is_quantized(f)) continue;
      const StoredMatrix m = matrix(f, kOut, kIn, random_rows(f, kOut, kIn, 4));
      const auto all = some_x(kRows * kIn, 1);
      for (const Index rows : {Index{1}, Index{2}, Index{4}, kRows}) {
        const std::vector<float> x(all.begin(), all.begin() + rows * kIn);
        const auto here = product(m, x, rows, rounded, 1);
        for (const cpu::IsaLevel& level : cpu::isa_levels()) {
          if (!level.supported() || has_own_bits(f, level.name) != has_own_bits(f, cpu::chosen_isa().name))
            continue;
          cpu::force_isa(&level);
          const auto there = product(m, x, rows, rounded, 1);
          cpu::force_isa(nullptr);
          EXPECT_TRUE(same(here.data(), there.data(), rows * kOut))
              << name_of(f) << " " << level.name << " " << rows << " rows";
        }
      }
    }
}

TEST(StoredMatrix, NumbersThatAreNotFiniteStayInTheirRow) {
  const StoredMatrix m = matrix(StoredFormat::q8_0, 16, 64, random_rows(StoredFormat::q8_0, 16, 64, 1));
  auto x = some_x(2 * 64, 2);
  const auto before = product(m, x, 2, true);
  x[70] = std::nanf("");
  const auto after = product(m, x, 2, true);
  EXPECT_TRUE(same(before.data(), after.data(), 16));
  for (std::size_t i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(after[i]));
}

/// A group whose largest number has no finite inverse: zeros beside it are zeros.
TEST(StoredMatrix, GroupsOfTinyNumbersAndZerosAreSummed) {
  for (const StoredFormat f : kAll) {
    if (!is_quantized(f)) continue;
    constexpr Index kOut = 16, kIn = 256;
    const auto bytes = random_rows(f, kOut, kIn, 3);
    std::vector<float> x(kIn);
    x[0] = 1e-37f;
    const auto y = product(matrix(f, kOut, kIn, bytes), x, 1, true);
    const auto w = widened(f, bytes);
    for (std::size_t o = 0; o < y.size(); ++o)
      EXPECT_NEAR(y[o], x[0] * w[o * kIn], 1e-38 * (1 + std::fabs(w[o * kIn]))) << name_of(f);
  }
}

TEST(StoredMatrix, RefusesInWords) {
  const auto none = [](Index, Index, std::byte*) {};
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { StoredMatrix(StoredFormat::q4_0, 4, 33, none); }),
            "stored matrix: rows have 33 numbers; q4_0 keeps them in blocks of 32");
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { StoredMatrix(StoredFormat::f32, 0, 4, none); }),
            "stored matrix: got [0 4]; give two sizes of 1 or more");
  const StoredMatrix m = matrix(StoredFormat::f32, 4, 8, random_rows(StoredFormat::f32, 4, 8, 1));
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { product(m, some_x(8, 1), 1, true); }),
            "stored matrix: rows of x are rounded for quantized weights alone; these are f32");
}

}  // namespace
}  // namespace headwise
