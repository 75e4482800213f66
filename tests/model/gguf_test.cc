// Gguf: settings and tensors come back, blocks have the values of their formulas, broken files are refused.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/model/gguf/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "headwise/base/half.h"
#include "tests/base/sentence.h"
#include "tests/model/gguf_bytes.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

std::string f32s(std::initializer_list<float> all) {
  std::string s;
  for (const float x : all) s += GgufBytes::raw(x);
  return s;
}
GgufBytes sample() {
  GgufBytes g;
  g.text("general.architecture", "llama").number("llama.block_count", 3).real("eps", 0.5F).flag("on", true);
  g.words("list", {"a", "", "bc"})
      .add("numbers", 9,
           GgufBytes::raw<std::uint32_t>(5) + GgufBytes::raw<std::uint64_t>(2) +
               GgufBytes::raw<std::int32_t>(-7) + GgufBytes::raw<std::int32_t>(9));
  g.tensor({"m", {3, 2}, 0, f32s({1, 2, 3, 4, 5, 6})}).tensor({"v", {2}, 0, f32s({7, 8})});
  return g;
}
GgufHeader parsed(const std::string& bytes) { return parse_gguf(std::as_bytes(std::span(bytes)), "t"); }
std::string refusal(const std::string& bytes) {
  return sentence_of(ErrorKind::bad_argument, [&] { parsed(bytes); });
}

TEST(Gguf, SettingsAndTensorsComeBack) {
  const ScratchFolder scratch;
  const Gguf file(scratch.file("a.gguf", sample().bytes()));
  EXPECT_EQ(file.word("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count", 1, 10), 3);
  EXPECT_EQ(file.number("eps", 0, 1), 0.5);
  EXPECT_TRUE(file.boolean("on"));
  EXPECT_EQ(file.words("list"), (std::vector<std::string>{"a", "", "bc"}));
  EXPECT_EQ(file.numbers("numbers"), (std::vector<double>{-7, 9}));
  EXPECT_EQ(file.integer("absent", 0, 9, 4), 4);
  EXPECT_TRUE(file.words("absent").empty());
  const GgufTensor* m = file.find("m");
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->rank, 2);
  EXPECT_EQ(m->size[0], 2);
  EXPECT_EQ(m->size[1], 3);
  float row[3];
  file.read_rows(*m, 1, 1, row);
  EXPECT_EQ(row[2], 6);
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { file.read_rows(*m, 1, 2, row); }),
            "gguf: tensor \"m\" has 2 rows; rows 1 to 3 were asked");
  EXPECT_NE(sentence_of(ErrorKind::bad_argument, [&] { file.word("eps"); }).find("\"eps\" is no text"),
            std::string::npos);
  EXPECT_NE(sentence_of(ErrorKind::bad_argument, [&] { file.integer("llama.block_count", 4, 9); })
                .find("is 3; it runs from 4 to 9"),
            std::string::npos);
}

/// The formulas of each format, number by number, over random blocks.
TEST(Gguf, BlocksHaveTheValuesOfTheirFormulas) {
  std::mt19937 random(5);
  const auto half = [](const std::string& b, std::size_t at) {
    f16 h;
    std::memcpy(&h.bits, b.data() + at, 2);
    return static_cast<double>(static_cast<float>(h));
  };
  for (const GgufFormat& f : gguf_formats()) {
    if (f.numbers == 1) continue;
    for (int trial = 0; trial < 50; ++trial) {
      std::string b(static_cast<std::size_t>(f.bytes), '\0');
      for (char& c : b) c = static_cast<char>(random());
      // Scales that are finite numbers of a usual size.
      const auto put = [&](std::size_t at) {
        const f16 h(0.001F * static_cast<float>(random() % 1000) - 0.4F);
        std::memcpy(b.data() + at, &h.bits, 2);
      };
      put(f.name == "Q6_K" ? 208 : 0);
      if (f.name == "Q4_1" || f.name == "Q4_K") put(2);
      std::vector<float> got(static_cast<std::size_t>(f.numbers));
      f.read(reinterpret_cast<const std::byte*>(b.data()), got.data());
      const auto u = [&](std::size_t at) { return static_cast<int>(static_cast<unsigned char>(b[at])); };
      for (std::size_t i = 0; i < got.size(); ++i) {
        double want = 0;
        const auto nibble = [&](std::size_t base) {
          return i < 16 ? u(base + i) & 15 : u(base + i - 16) >> 4;
        };
        if (f.name == "Q4_0") want = half(b, 0) * (nibble(2) - 8);
        if (f.name == "Q4_1") want = half(b, 0) * nibble(4) + half(b, 2);
        if (f.name == "Q5_0") want = half(b, 0) * ((nibble(6) | ((u(2 + i / 8) >> (i % 8)) & 1) << 4) - 16);
        if (f.name == "Q8_0") want = half(b, 0) * static_cast<signed char>(b[2 + i]);
        if (f.name == "Q4_K") {
          const std::size_t j = i / 32;
          int sc = u(4 + j) & 63, mn = u(8 + j) & 63;
          if (j >= 4) sc = (u(8 + j) & 15) | (u(j) >> 6) << 4, mn = (u(8 + j) >> 4) | (u(4 + j) >> 6) << 4;
          const int q =
              i / 32 % 2 == 0 ? u(16 + i / 64 * 32 + i % 32) & 15 : u(16 + i / 64 * 32 + i % 32) >> 4;
          want = half(b, 0) * sc * q - half(b, 2) * mn;
        }
        if (f.name == "Q6_K") {
          const std::size_t part = i / 128, in = i % 128, line = in / 32, at = in % 32;
          const int low = line % 2 == 0 ? u(part * 64 + at) : u(part * 64 + 32 + at);
          const int q = (line < 2 ? low & 15 : low >> 4) | ((u(128 + part * 32 + at) >> (2 * line)) & 3) << 4;
          want = half(b, 208) * static_cast<signed char>(b[192 + i / 16]) * (q - 32);
        }
        ASSERT_EQ(got[i], static_cast<float>(want)) << f.name << " " << i;
      }
    }
  }
}

TEST(Gguf, EveryCutIsRefused) {
  const std::string whole = sample().bytes();
  ASSERT_EQ(parsed(whole).tensors.size(), 2u);
  // The last tensor's data ends before the padding does.
  for (std::size_t n = 0; n < whole.size() - 24; ++n)
    EXPECT_TRUE(refusal(whole.substr(0, n)).starts_with("gguf: t: ")) << n;
}

TEST(Gguf, HostileCountsSizesAndOffsetsAreRefused) {
  const std::string whole = sample().bytes();
  const auto with = [&](std::size_t at, std::uint64_t value) {
    std::string s = whole;
    std::memcpy(s.data() + at, &value, 8);
    return refusal(s);
  };
  EXPECT_NE(with(8, ~0ull).find("names 18446744073709551615 tensors"), std::string::npos);
  EXPECT_NE(with(16, 1ull << 60).find("settings"), std::string::npos);
  EXPECT_NE(with(24, 1ull << 40).find("bytes of a name"), std::string::npos);
  const auto say = [](GgufBytes::Tensor t) { return refusal(GgufBytes().tensor(std::move(t)).bytes()); };
  EXPECT_NE(say({"m", {1ull << 40}, 0, "1234"}).find("has a size of"), std::string::npos);
  EXPECT_NE(say({"m", {64, 64, 64, 64}, 0, "1234"}).find("more numbers than the file"), std::string::npos);
  EXPECT_NE(say({"m", {1}, 99, "1234"}).find("is of type 99"), std::string::npos);
  EXPECT_NE(say({"m", {16}, 2, std::string(32, 'x')}).find("blocks of 32"), std::string::npos);
  EXPECT_NE(say({"m", {1, 1, 1, 1, 1}, 0, "1234"}).find("has 5 sizes"), std::string::npos);
  EXPECT_NE(say({"", {1}, 0, "1234"}).find("empty name"), std::string::npos);
  GgufBytes twice;
  twice.number("a", 1).number("a", 2);
  EXPECT_NE(refusal(twice.bytes()).find("twice"), std::string::npos);
  GgufBytes odd;
  odd.number("general.alignment", 3);
  EXPECT_NE(refusal(odd.bytes()).find("power of two"), std::string::npos);
}

TEST(Gguf, RandomDamageNeverEscapesTheFile) {
  const std::string whole = sample().bytes();
  std::mt19937 random(11);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string s = whole;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
      s[random() % s.size()] = static_cast<char>(random());
    try {
      for (const GgufTensor& t : parsed(s).tensors) {
        ASSERT_GE(t.begin, 0);
        ASSERT_LE(t.begin + t.bytes, static_cast<Index>(s.size()));
      }
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace headwise
