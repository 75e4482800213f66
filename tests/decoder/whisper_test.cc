// Whisper's decoder from CTranslate2's file: logits and taps against plain loops, bits, refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "headwise/base/context.h"
#include "headwise/decoder/forward/kv_file.h"
#include "headwise/decoder/generator.h"
#include "tests/base/sentence.h"
#include "tests/decoder/tiny_model.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

constexpr Index kLayers = 2, kDim = 24, kFeed = 40, kHeads = 4, kVocabulary = 50, kPositions = 32,
                kStates = 19;

/// A model.bin, written byte by byte.
class Ct2Bytes {
 public:
  explicit Ct2Bytes(const std::string& spec = "WhisperSpec", std::uint32_t version = 6) {
    put(version), word(spec), put(std::uint32_t{3});
    count_ = bytes.size();
    put(std::uint32_t{0});
  }
  void word(const std::string& s) {
    put(static_cast<std::uint16_t>(s.size() + 1));
    bytes += s;
    bytes += '\0';
  }
  template <class T>
  void put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void variable(const std::string& name, const std::vector<Index>& sizes, int type,
                const std::vector<T>& values) {
    word(name);
    put(static_cast<std::uint8_t>(sizes.size()));
    for (const Index n : sizes) put(static_cast<std::uint32_t>(n));
    put(static_cast<std::uint8_t>(type));
    put(static_cast<std::uint32_t>(values.size() * sizeof(T)));
    for (const T v : values) put(v);
    ++variables_;
    std::memcpy(bytes.data() + count_, &variables_, sizeof variables_);
  }
  void setting(const std::string& name, int value) {
    variable<std::int8_t>(name, {}, 1, {static_cast<std::int8_t>(value)});
  }
  void end(const std::string& alias = "decoder/projection/weight",
           const std::string& of = "decoder/embeddings/weight") {
    put(std::uint32_t{1});
    word(alias), word(of);
  }
  std::string bytes;

 private:
  std::size_t count_ = 0;
  std::uint32_t variables_ = 0;
};

/// Random weights with the names of the real file; f32 and f16 by turns.
Ct2Bytes tiny_whisper() {
  Ct2Bytes f;
  std::uint64_t seed = 40;
  const auto add = [&](const std::string& name, const std::vector<Index>& sizes, double middle,
                       double spread) {
    Index n = 1;
    for (const Index s : sizes) n *= s;
    ++seed;
    std::vector<float> wide;
    std::vector<std::uint16_t> half(static_cast<std::size_t>(n));
    for (Index i = 0; i < n; ++i) wide.push_back(static_cast<float>(middle + spread * normal_at(seed, i)));
    for (Index i = 0; i < n; ++i)
      store_double(half.data(), DType::f16, i, static_cast<double>(wide[static_cast<std::size_t>(i)]));
    if (seed % 2 == 0)
      f.variable(name, sizes, 0, wide);
    else
      f.variable(name, sizes, 4, half);
  };
  const auto norm = [&](const std::string& at) {
    add(at + "layer_norm/gamma", {kDim}, 1, 0.1);
    add(at + "layer_norm/beta", {kDim}, 0, 0.1);
  };
  const auto linear = [&](const std::string& at, Index rows, Index columns) {
    add(at + "/weight", {rows, columns}, 0, 1.5 / std::sqrt(static_cast<double>(columns)));
    add(at + "/bias", {rows}, 0, 0.1);
  };
  f.setting("decoder/activation", 3), f.setting("decoder/pre_norm", 1), f.setting("decoder/alibi", 0);
  f.setting("decoder/scale_embeddings", 0);
  f.variable<std::int16_t>("decoder/num_heads", {}, 2, {static_cast<std::int16_t>(kHeads)});
  f.variable<std::int16_t>("decoder/alignment_layer", {}, 2, {-1});
  add("decoder/embeddings/weight", {kVocabulary, kDim}, 0, 0.3);
  add("decoder/position_encodings/encodings", {kPositions, kDim}, 0, 0.3);
  norm("decoder/");
  for (Index i = 0; i < kLayers; ++i) {
    const std::string at = text("decoder/layer_", i, "/");
    norm(at + "self_attention/"), norm(at + "attention/"), norm(at + "ffn/");
    linear(at + "self_attention/linear_0", 3 * kDim, kDim),
        linear(at + "self_attention/linear_1", kDim, kDim);
    linear(at + "attention/linear_0", kDim, kDim), linear(at + "attention/linear_1", 2 * kDim, kDim);
    linear(at + "attention/linear_2", kDim, kDim);
    linear(at + "ffn/linear_0", kFeed, kDim), linear(at + "ffn/linear_1", kDim, kFeed);
  }
  add("encoder/conv1/weight", {kDim, 3, 3}, 0, 1);
  f.end();
  return f;
}

struct Whisper : testing::Test {
  Whisper() {
    put(tiny_whisper().bytes);
    std::ofstream(folder.path() + "/config.json")
        << R"({"alignment_heads": [[0, 3], [1, 0]], "lang_ids": []})";
  }
  void put(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
  std::string says() {
    return sentence_of(ErrorKind::bad_argument, [&] {
      const auto source = open_decoder(path);
      const Decoder model(*source, {}, ctx);
    });
  }
  static Tensor states(std::uint64_t seed) { return random_normal({kStates, kDim}, DType::f32, seed); }

  ScratchFolder folder;
  std::string path = folder.path() + "/model.bin";
  Context ctx{{.threads = 2}};
};

std::vector<TokenId> some_tokens(TokenId n) {
  std::vector<TokenId> t;
  for (TokenId i = 0; i < n; ++i) t.push_back((i * 17 + 5) % static_cast<TokenId>(kVocabulary));
  return t;
}

struct Seen {
  std::vector<std::vector<float>> logits, weights;
  friend bool operator==(const Seen&, const Seen&) = default;
};
Seen in_chunks(const Decoder& model, const DecoderMemory& memory, const std::vector<TokenId>& tokens,
               Index chunk, Context& ctx) {
  KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
  const SequenceId id = cache.open();
  DecoderStep step;
  step.watch = true;
  Seen out;
  for (Index done = 0; done < std::ssize(tokens); done += chunk) {
    const auto part = std::span(tokens).subspan(
        static_cast<std::size_t>(done), static_cast<std::size_t>(std::min(chunk, std::ssize(tokens) - done)));
    std::vector<DecoderRow> rows;
    for (const TokenId t : part) rows.push_back({id, t, true, &memory});
    EXPECT_TRUE(cache.reserve(id, std::ssize(part)));
    model.forward(rows, cache, step, ctx);
    cache.commit(id, part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto l = step.logits(static_cast<Index>(i));
      out.logits.emplace_back(l.begin(), l.end());
      out.weights.push_back(step.heads()[i].cross_weights);
    }
  }
  return out;
}

TEST_F(Whisper, LogitsAndTapsOfCrossHeadsAreThoseOfPlainLoops) {
  const auto source = open_decoder(path);
  EXPECT_EQ(source->config().family, "whisper");
  EXPECT_TRUE(source->config().cross && source->config().tied);
  ASSERT_EQ(source->config().alignment.size(), 2u);
  EXPECT_TRUE(source->config().alignment[0].layer == 0 && source->config().alignment[0].head == 3);
  const Decoder model(*source, {.dtype = DType::f32}, ctx);
  const Tensor s = states(3);
  const DecoderMemory memory(model, s.view(), ctx);
  const std::vector<TokenId> tokens = some_tokens(13);
  const Seen got = in_chunks(model, memory, tokens, 13, ctx);
  PlainForward plain(*source);
  for (Index t = 0; t < kStates; ++t)
    plain.states.emplace_back(s.values<float>().begin() + t * kDim,
                              s.values<float>().begin() + (t + 1) * kDim);
  const auto want = plain.logits(tokens);
  double far = 0, size = 0, off = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t i = 0; i < want[t].size(); ++i) {
      far += std::pow(static_cast<double>(got.logits[t][i]) - want[t][i], 2);
      size += want[t][i] * want[t][i];
    }
    ASSERT_EQ(got.weights[t].size(), static_cast<std::size_t>(kLayers * kHeads * kStates));
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      for (std::size_t i = 0; i < kHeads * kStates; ++i)
        off = std::max(off, std::fabs(static_cast<double>(got.weights[t][layer * kHeads * kStates + i]) -
                                      plain.cross_weights[layer][t][i]));
  }
  EXPECT_LT(std::sqrt(far / size), 3e-6);
  EXPECT_LT(off, 3e-6);
  EXPECT_GT(size, 1.0);
}

TEST_F(Whisper, ChunksThreadsAndFormatsChangeNoBit) {
  const auto source = open_decoder(path), again = open_decoder(path);
  Context one({.threads = 1});
  const Decoder model(*source, {}, ctx), wide(*again, {.dtype = DType::f32}, one);
  const Tensor s = states(3);
  const DecoderMemory memory(model, s.view(), ctx), other(wide, s.view(), one);
  const Seen whole = in_chunks(model, memory, some_tokens(21), 21, ctx);
  for (const Index chunk : {1, 4, 17})
    EXPECT_TRUE(whole == in_chunks(model, memory, some_tokens(21), chunk, one)) << chunk;
  EXPECT_TRUE(whole == in_chunks(wide, other, some_tokens(21), 5, ctx));  // f16 widened is the same number
}

TEST_F(Whisper, TextsWithTwoMemoriesShareNothing) {
  const auto source = open_decoder(path);
  const Decoder model(*source, {}, ctx);
  std::vector<std::shared_ptr<const DecoderMemory>> memories;
  for (const std::uint64_t seed : {3, 4}) {
    const Tensor s = states(seed);
    memories.push_back(std::make_shared<const DecoderMemory>(model, s.view(), ctx));
  }
  const auto texts = [&](const std::vector<int>& which) {
    KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
    Generator g(model, nullptr, cache, {.step_tokens = 8});
    std::vector<std::vector<TokenId>> out(which.size());
    for (const int m : which) {
      GenerateRequest r;
      r.prompt = some_tokens(12), r.max_tokens = 9, r.memory = memories[static_cast<std::size_t>(m)];
      g.add(r);
    }
    while (g.step(ctx))
      for (const GenerateEvent& e : g.events())
        out[static_cast<std::size_t>(e.id)].insert(out[static_cast<std::size_t>(e.id)].end(),
                                                   e.tokens.begin(), e.tokens.end());
    return out;
  };
  const auto a = texts({0})[0], b = texts({1})[0];
  EXPECT_NE(a, b);
  EXPECT_EQ(texts({0, 1, 0, 1}), (std::vector{a, b, a, b}));
}

TEST_F(Whisper, WhatIsMissingIsSaid) {
  const auto source = open_decoder(path);
  const Decoder model(*source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
  Generator g(model, nullptr, cache);
  GenerateRequest r;
  r.prompt = {1};
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { g.add(r); }),
            "generate: a whisper model looks at the states of an encoder; give a memory made of them");
  const SequenceId id = cache.open();
  ASSERT_TRUE(cache.reserve(id, 1));
  DecoderStep step;
  const DecoderRow row{id, 1, true};
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { model.forward(std::span(&row, 1), cache, step, ctx); }),
      "decoder: a whisper model looks at the states of an encoder; give a memory with every row");
  EXPECT_EQ(
      sentence_of(ErrorKind::unsupported, [&] { save_kv(cache, id, model, folder.path() + "/kv"); }),
      "kv file: keys of a model with cross-attention depend on its memory, which no file names; compute "
      "them anew");
  const Tensor narrow(DType::f32, {4, kDim - 1});
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { const DecoderMemory m(model, narrow.view(), ctx); }),
            "decoder memory: got states f32 [4 23]; f32 [tokens 24] on the CPU are needed");
  Tensor broken = states(1);
  broken.values<float>()[30] = std::nanf("");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { const DecoderMemory m(model, broken.view(), ctx); }),
            "decoder memory: number 6 of state 1 is not finite");
  TinySource plain(tiny_config());
  const Decoder llama(plain, {}, ctx);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          const Tensor s = states(1);
                          const DecoderMemory m(llama, s.view(), ctx);
                        }),
            "decoder memory: a llama model has no cross-attention; it takes no states of an encoder");
}

TEST_F(Whisper, HostileFilesAreRefusedInWords) {
  const std::string good = tiny_whisper().bytes;
  for (std::size_t length = 22; length < good.size(); length += 1 + length / 12) {
    put(good.substr(0, length));
    EXPECT_NE(says(), "(nothing was thrown)") << length;
  }
  put(good + "x");
  EXPECT_EQ(says(), text("ctranslate2: ", path, ": has 1 bytes behind its last alias; it was changed"));
  put(Ct2Bytes("TransformerSpec").bytes);
  EXPECT_EQ(sentence_of(ErrorKind::unsupported, [&] { open_decoder(path); }),
            text("whisper: ", path, ": is a TransformerSpec of CTranslate2; WhisperSpec alone is read"));
  put(Ct2Bytes("WhisperSpec", 5).bytes);
  EXPECT_EQ(says(), text("ctranslate2: ", path, ": has the binary version 5; version 6 is read"));
  const auto with = [&](const std::string& find, const std::string& put_there) {
    std::string bytes = good;
    bytes.replace(bytes.find(find), put_there.size(), put_there);
    put(bytes);
    return says();
  };
  EXPECT_EQ(with("decoder/layer_norm/beta", "decoder/layer_norm/bete"),
            text("whisper: ", path, ": has no \"decoder/layer_norm/beta\""));
  EXPECT_EQ(
      with("encoder/conv1/weight", "decoder/conv1/weight"),
      text("whisper: ", path, ": holds \"decoder/conv1/weight\", which no decoder that headwise knows has"));
  const std::string pre = std::string("decoder/pre_norm") + '\0' + '\0' + '\1' + '\1' + '\0' + '\0' + '\0';
  EXPECT_EQ(with(pre + '\1', pre + '\0'), text("whisper: ", path, ": has pre_norm 0; 1 alone is computed"));
  std::ofstream(folder.path() + "/config.json") << R"({"alignment_heads": [[0, 9]]})";
  put(good);
  EXPECT_EQ(says(), text("whisper: ", path,
                         ": head 9 of layer 0 is listed for alignment; there is no such cross head"));
}

}  // namespace
}  // namespace headwise
