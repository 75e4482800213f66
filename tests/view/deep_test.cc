// Tiles, lines and the pyramid of a long map against every weight in double; .atnv files, whole and hostile.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "headwise/base/context.h"
#include "headwise/base/error.h"
#include "headwise/view/deep/atnv.h"
#include "headwise/view/deep/deep_map.h"
#include "headwise/view/packed_maps.h"

namespace headwise {
namespace {

struct Made {
  std::vector<float> q, k, lse;
  QkSource source;
  std::vector<double> weights;  // of head 1, [queries keys]
};

FileArray array_of(const std::vector<float>& x, std::vector<Index> sizes) {
  return {.name = "",
          .kind = ElementKind::f32,
          .sizes = std::move(sizes),
          .element_bytes = 4,
          .data = reinterpret_cast<const std::byte*>(x.data())};
}

constexpr Index kHeads = 2, kDim = 8;

/// One layer of two heads that share keys; head 1 in double, by the formula.
void make(Made& m, Index queries, Index keys, const QkTerms& terms, bool with_lse = false) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0, 1.5f);
  m.q.resize(static_cast<std::size_t>(kHeads * queries * kDim)),
      m.k.resize(static_cast<std::size_t>(keys * kDim));
  for (float& x : m.q) x = normal(rng);
  for (float& x : m.k) x = normal(rng);
  m.lse.assign(static_cast<std::size_t>(kHeads * queries), 0);
  m.weights.assign(static_cast<std::size_t>(queries * keys), 0);
  const double scale = terms.scale != 0 ? terms.scale : 1 / std::sqrt(8.0);
  for (Index i = 0; i < queries; ++i) {
    double sum = 0;
    for (Index j = 0; j < keys; ++j) {
      if (!terms.mask.may_attend(i + terms.q_start, j)) continue;
      double s = 0;
      for (Index d = 0; d < kDim; ++d)
        s += static_cast<double>(m.q[static_cast<std::size_t>((queries + i) * kDim + d)]) *
             static_cast<double>(m.k[static_cast<std::size_t>(j * kDim + d)]);
      s *= scale;
      if (terms.softcap > 0) s = terms.softcap * std::tanh(s / terms.softcap);
      sum += m.weights[static_cast<std::size_t>(i * keys + j)] = std::exp(s);
    }
    for (Index j = 0; j < keys && sum > 0; ++j) m.weights[static_cast<std::size_t>(i * keys + j)] /= sum;
    m.lse[static_cast<std::size_t>(queries + i)] = static_cast<float>(std::log(sum));
  }
  m.source.layers = {{.number = 0,
                      .q = array_of(m.q, {kHeads, queries, kDim}),
                      .k = array_of(m.k, {1, keys, kDim}),
                      .lse = {}}};
  if (with_lse) m.source.layers[0].lse = array_of(m.lse, {kHeads, queries});
  m.source.terms = terms;
  check_qk(m.source, "test");
}

void expect_tile(DeepMap& map, const Made& m, Index block, Index row, Index column) {
  const DeepTile t = map.tile(0, 1, {block, row, column});
  ASSERT_EQ(t.state, DeepTile::State::exact) << block;
  const QkSource& s = map.source();
  for (Index a = 0; a < DeepTile::kTile; a += 7)
    for (Index b = 0; b < DeepTile::kTile; b += 7) {
      double sum = 0, most = 0, open = 0;
      for (Index i = (row * 256 + a) * block; i < std::min(s.q_tokens, (row * 256 + a + 1) * block); ++i)
        for (Index j = (column * 256 + b) * block; j < std::min(s.kv_tokens, (column * 256 + b + 1) * block);
             ++j) {
          const double w = m.weights[static_cast<std::size_t>(i * s.kv_tokens + j)];
          sum += w, most = std::max(most, w), open += s.terms.mask.may_attend(i + s.terms.q_start, j) ? 1 : 0;
        }
      const auto at = static_cast<std::size_t>(a * 256 + b);
      EXPECT_NEAR(weight_of_code(t.max[at]), most, 0.036 * most + 0x1p-23) << block << ": " << a << ", " << b;
      EXPECT_NEAR(weight_of_code(t.mean[at]), open > 0 ? sum / open : 0,
                  0.036 * sum / std::max(1.0, open) + 0x1p-23);
    }
}

TEST(DeepMap, TilesLinesAndPyramidAreThoseOfTheFormula) {
  QkTerms causal, odd, full;
  causal.mask = Mask::causal();
  odd.mask = Mask::sliding(70) | Mask::prefix(3);
  odd.scale = 0.5f, odd.softcap = 4;
  for (const QkTerms& terms : {causal, odd, full})
    for (const bool with_lse : {false, true}) {
      Made m;
      make(m, 700, 700, terms, with_lse);
      DeepMap map(m.source, 2);
      for (const Index block : {1, 4, 8}) expect_tile(map, m, block, 0, 0);
      expect_tile(map, m, 1, 2, 1);  // the last rows
      const std::vector<float> some = map.weights(0, 1, {600, 5}, 30, 640);
      for (Index i = 0; i < 5; ++i)
        for (Index j = 30; j < 640; ++j)
          EXPECT_NEAR(some[static_cast<std::size_t>(i * 610 + j - 30)],
                      m.weights[static_cast<std::size_t>((600 + i) * 700 + j)], 2e-6);
      map.finish(0, 1);
      for (const Index block : {16, 32, 64, 128, 256}) expect_tile(map, m, block, 0, 0);
      const DeepLine row = map.row_line(0, 1, 650, 100, 3), column = map.column_line(0, 1, 2, 100, 3);
      EXPECT_NEAR(row.sum, 1, 1e-5);
      const auto* first = m.weights.data() + 650 * 700;
      EXPECT_EQ(row.top[0].first, std::max_element(first, first + 700) - first);
      double sum = 0;
      for (Index i = 0; i < 700; ++i) sum += m.weights[static_cast<std::size_t>(i * 700 + 2)];
      EXPECT_NEAR(column.sum, sum, 1e-4 * sum);
      EXPECT_NEAR(map.column_sums(0, 1)[2], sum, 1e-4 * sum);
      const std::vector<float> back = map.by_distance(0, 1);
      for (const Index d : {0, 1, 69, 300}) {
        double mean = 0;
        for (Index i = d; i < 700; ++i) mean += m.weights[static_cast<std::size_t>(i * 700 + i - d)];
        EXPECT_NEAR(back[static_cast<std::size_t>(d)], mean / static_cast<double>(700 - d), 1e-5) << d;
      }
    }
}

TEST(DeepMap, QueriesThatBeginLaterMeetTheirKeys) {
  QkTerms terms;
  terms.mask = Mask::causal(), terms.q_start = 80;
  Made m;
  make(m, 20, 100, terms);
  DeepMap map(m.source, 1);
  expect_tile(map, m, 1, 0, 0);
  map.finish(0, 1);
  expect_tile(map, m, 16, 0, 0);
  EXPECT_NEAR(
      map.by_distance(0, 1)[0],
      [&] {
        double s = 0;
        for (Index i = 0; i < 20; ++i) s += m.weights[static_cast<std::size_t>(i * 100 + i + 80)];
        return s / 20;
      }(),
      1e-5);
}

TEST(DeepMap, ASampledPictureSaysSo) {
  Made m;
  QkTerms causal;
  causal.mask = Mask::causal();
  make(m, 1500, 1500, causal);
  DeepMap map(m.source, 1);
  const MapPyramid empty(map.source());
  EXPECT_EQ(empty.bands(), 6);
  MapPyramid pyramid(map.source());
  HeadRows rows(map.source(), 0, 1);
  Context ctx({.threads = 2});
  pyramid.sample(rows, ctx);
  const PyramidLevel& l = pyramid.levels()[MapPyramid::kBandLevels - 1];
  for (Index i = 0; i < 6; ++i)
    for (Index j = 0; j <= i; ++j) {
      double most = 0;
      for (Index r = 256 * i + 32; r < std::min<Index>(1500, 256 * (i + 1)); r += 64)
        for (Index k = 256 * j; k < std::min<Index>(1500, 256 * (j + 1)); ++k)
          most = std::max(most, m.weights[static_cast<std::size_t>(r * 1500 + k)]);
      EXPECT_NEAR(weight_of_code(l.max[static_cast<std::size_t>(i * 6 + j)]), most, 0.036 * most + 0x1p-23);
    }
  EXPECT_THROW(map.tile(0, 1, {3, 0, 0}), Error);
  EXPECT_THROW(map.tile(0, 2, {1, 0, 0}), Error);
  EXPECT_THROW(map.weights(0, 0, {1499, 2}, 0, 1), Error);
}

std::string words_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

class Atnv : public ::testing::Test {
 protected:
  void SetUp() override {
    make(
        m_, 70, 70,
        [] {
          QkTerms t;
          t.mask = Mask::causal();
          return t;
        }(),
        true);
    AtnvContent c{
        .name = "two heads", .mask = "causal", .layers = m_.source.layers, .tokens = {}, .key_tokens = {}};
    for (int i = 0; i < 70; ++i) c.tokens.push_back(i == 3 ? "世界" : "t" + std::to_string(i));
    write_atnv(path_, c);
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::string opened(const std::string& bytes) const {
    const std::string path = ::testing::TempDir() + "hostile.atnv";
    std::ofstream(path, std::ios::binary) << bytes;
    return words_of([&] { AtnvFile::open_qk(path), AtnvFile(path).verify(); });
  }
  std::string changed(const std::string& from, const std::string& to) const {
    std::string b = bytes_;
    const std::size_t at = b.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    EXPECT_EQ(from.size(), to.size());
    return b.replace(at, from.size(), to);
  }
  Made m_;
  std::string path_ = ::testing::TempDir() + "deep_test.atnv", bytes_;
};

TEST_F(Atnv, ReadsBackWhatWasWritten) {
  EXPECT_EQ(crc32c(std::as_bytes(std::span("123456789", 9))),
            0xe3069283u);  // the check value of RFC 3720's CRC
  const QkSource s = AtnvFile::open_qk(path_);
  EXPECT_EQ(s.heads, 2);
  EXPECT_EQ(s.kv_heads, 1);
  EXPECT_EQ(s.name, "two heads");
  EXPECT_EQ(s.query_token(3), "世界");
  EXPECT_EQ(s.key_token(69), "t69");
  EXPECT_TRUE(s.layers[0].lse.has_value());
  EXPECT_EQ(std::memcmp(s.layers[0].q.data, m_.q.data(), m_.q.size() * 4), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(s.layers[0].k.data) % 64, 0u);
  DeepMap map(s, 1);
  expect_tile(map, m_, 1, 0, 0);
  AtnvFile(path_).verify();
}

TEST_F(Atnv, HostileFilesAreRefusedInWords) {
  EXPECT_NE(opened(bytes_.substr(0, 10)).find("begins with 16"), std::string::npos);
  EXPECT_NE(opened("ATNVIEW2" + bytes_.substr(8)).find("ATNVIEW1"), std::string::npos);
  EXPECT_NE(opened(bytes_.substr(0, 8) + std::string(8, '\xff')).find("at most"), std::string::npos);
  EXPECT_NE(opened(bytes_.substr(0, 100)).find("the file has 100 bytes"), std::string::npos);
  EXPECT_NE(opened(bytes_.substr(0, bytes_.size() - 64)).find("cut short"), std::string::npos);
  EXPECT_NE(opened(changed("\"dtype\":\"f32\"", "\"dtype\":\"f99\"")).find("not known"), std::string::npos);
  EXPECT_NE(opened(changed("\"codec\":\"raw\"", "\"codec\":\"zst\"")).find("write it raw"),
            std::string::npos);
  EXPECT_NE(opened(changed("\"shape\":[2,70,8]", "\"shape\":[2,71,8]")).find("take"), std::string::npos);
  EXPECT_NE(opened(changed("\"shape\":[2,70,8]", "\"shape\":[9,9e9,]")), "nothing was refused");
  EXPECT_NE(opened(changed("\"q\":\"b0\"", "\"q\":\"b9\"")).find("not in the file"), std::string::npos);
  EXPECT_NE(opened(changed("\"version\":[1,0]", "\"version\":[2,0]")).find("1 is read"), std::string::npos);
  EXPECT_NE(opened(changed("\"type\":\"causal\"", "\"type\":\"custom\"")).find("is not known"),
            std::string::npos);
  std::string damaged = bytes_;
  damaged[damaged.size() - 100] ^= 1;
  EXPECT_NE(opened(damaged).find("checksum"), std::string::npos);
  for (std::size_t at = 16; at < 600; at += 13) {  // any byte of the manifest: words or a file, never a crash
    std::string b = bytes_;
    b[at] ^= 0x11;
    opened(b);
  }
}

}  // namespace
}  // namespace headwise
