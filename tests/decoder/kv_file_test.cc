// kv_file: a text that was saved and loaded goes on bit for bit; other files are refused in words.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/forward/kv_file.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/base/sentence.h"
#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

class KvFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("headwise_kv_" + std::to_string(getpid()));
    fs::create_directories(folder);
    path = (folder / "text.kv").string();
  }
  void TearDown() override { fs::remove_all(folder); }

  /// Computes the tokens behind what the sequence has; the last one's logits.
  std::vector<float> compute(KvCache& cache, SequenceId id, std::span<const TokenId> tokens) {
    std::vector<DecoderRow> rows;
    for (const TokenId t : tokens) rows.push_back({id, t, false});
    rows.back().logits = true;
    EXPECT_TRUE(cache.reserve(id, static_cast<Index>(tokens.size())));
    DecoderStep step;
    bench.model.forward(rows, cache, step, bench.ctx);
    cache.commit(id, tokens);
    const std::span<const float> l = step.logits(0);
    return {l.begin(), l.end()};
  }
  std::string load_says(KvCache& cache, const Decoder& model) {
    const KvStats before = cache.stats();
    const std::string s = sentence_of(ErrorKind::bad_argument, [&] { load_kv(cache, model, path); });
    cache.check();
    EXPECT_EQ(cache.stats().sequences, before.sequences);
    EXPECT_EQ(cache.stats().free, before.free);
    return s.starts_with("kv file: " + path + ": ") ? s.substr(11 + path.size()) : s;
  }
  std::vector<char> bytes() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::vector<char>& all) const {
    std::ofstream(path, std::ios::binary).write(all.data(), static_cast<std::streamsize>(all.size()));
  }

  GeneratorBench bench;
  fs::path folder;
  std::string path;
  const std::vector<TokenId> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8};
};

TEST_F(KvFile, LoadedTextsGoOnAsIfTheyHadNeverStopped) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3})
    for (const Index length : {1, 7, 8, 16, 19}) {
      const KvOptions options{.bytes = 1 << 18, .page_tokens = 8, .dtype = dtype};
      KvCache cache(bench.model.kv_shape(), options);
      const SequenceId id = cache.open();
      compute(cache, id, std::span(text).first(static_cast<std::size_t>(length)));
      save_kv(cache, id, bench.model, path);
      const TokenId more[] = {11, 12};
      const auto truth = compute(cache, id, more);
      KvCache other(bench.model.kv_shape(), options);
      // A cache that is in use: its free pages lie elsewhere.
      const SequenceId busy = other.open("them");
      compute(other, busy, std::span(text).subspan(4));
      const SequenceId back = load_kv(other, bench.model, path);
      ASSERT_GE(back, 0);
      other.check();
      EXPECT_EQ(other.length(back), length);
      const auto got = compute(other, back, more);
      EXPECT_EQ(std::memcmp(truth.data(), got.data(), truth.size() * 4), 0)
          << name_of(dtype) << " " << length;
    }
}

TEST_F(KvFile, WhatDoesNotFitIsRefusedInWords) {
  KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
  const SequenceId id = cache.open();
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { save_kv(cache, id, bench.model, path); }),
            "kv file: the sequence has no token; there is nothing to save");
  compute(cache, id, text);
  save_kv(cache, id, bench.model, path);

  TinySource source(tiny_config(), 2);
  EXPECT_EQ(load_says(cache, Decoder(source, {}, bench.ctx)), "was written by another model");
  TinySource same(tiny_config(), 1);
  EXPECT_EQ(load_says(cache, Decoder(same, {.dtype = DType::bf16}, bench.ctx)),
            "was written by another model");
  TinySource again(tiny_config(), 1);
  EXPECT_EQ(load_says(cache, Decoder(again, {.rounded_rows = true}, bench.ctx)),
            "was written by the same model with other numerics; use the same dtype and rows");
  KvCache wide(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 16});
  EXPECT_EQ(load_says(wide, bench.model),
            "has pages of 8 tokens or of another dtype; the cache has pages of 16 of f32");
  KvCache small(bench.model.kv_shape(), {.bytes = 2 * 8 * 2 * 2 * 6 * 4 * 2, .page_tokens = 8});
  EXPECT_EQ(small.pages(), 2);
  EXPECT_EQ(load_kv(small, bench.model, path), -1);
  small.check();
}

/// Pages that went behind a window are nobody's, and have no place in a file.
TEST_F(KvFile, WhatIsNotWholeIsNotSaved) {
  KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8, .window = 4});
  const SequenceId id = cache.open();
  compute(cache, id, text);
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { save_kv(cache, id, bench.model, path); }),
            "kv file: some pages of the sequence lie on other ranks or were dropped behind a window; a file "
            "holds whole sequences, so use one rank and a cache without a window");
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(KvFile, EveryChangedByteAndEveryCutIsRefused) {
  KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
  const SequenceId id = cache.open();
  compute(cache, id, std::span(text).first(9));
  save_kv(cache, id, bench.model, path);
  const std::vector<char> good = bytes();
  std::mt19937 random(3);
  for (std::size_t i = 0; i < good.size(); i += i < 260 ? 1 : 1 + random() % 61) {
    std::vector<char> bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << random() % 8));
    put(bad);
    EXPECT_NE(load_says(cache, bench.model), "(nothing was thrown)") << i;
  }
  for (std::size_t length = 0; length < good.size(); length += 1 + random() % 97) {
    put({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
    EXPECT_NE(load_says(cache, bench.model), "(nothing was thrown)") << length;
  }
  put(good);
  EXPECT_GE(load_kv(cache, bench.model, path), 0);
}

TEST_F(KvFile, AKillLeavesTheOldFileOrTheNewOne) {
  KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
  const SequenceId first = cache.open(), second = cache.open();
  compute(cache, first, std::span(text).first(9));
  compute(cache, second, text);
  save_kv(cache, first, bench.model, path);
  std::mt19937 random(5);
  const char* slow = std::getenv("HEADWISE_SLOW");
  const int kills = slow != nullptr && *slow == '1' ? 1000 : 25;
  for (int i = 0; i < kills; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (bool which = false;; which = !which) save_kv(cache, which ? first : second, bench.model, path);
    }
    usleep(static_cast<useconds_t>(200 + random() % 4000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const SequenceId back = load_kv(cache, bench.model, path);
    ASSERT_GE(back, 0);
    EXPECT_TRUE(cache.length(back) == 9 || cache.length(back) == static_cast<Index>(text.size()));
    cache.close(back);
  }
}

}  // namespace
}  // namespace headwise
