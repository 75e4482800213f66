// The recogniser: gradients of pooling and scores, bits of batches, chunks, folders and their refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/recognizer/recognizer.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/safetensors.h"
#include "headwise/train/checkpoints/crc32c.h"
#include "tests/intent/support.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;
namespace fs = std::filesystem;

Vocabulary vocabulary() {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c), pieces.push_back(std::string("##") + c);
  for (const char* word : {"card", "loan", "rate", "fee", "my", "the", "##s", "pay", "卡", "款"})
    if (std::find(pieces.begin(), pieces.end(), word) == pieces.end()) pieces.emplace_back(word);
  return Vocabulary(pieces);
}

RecognizerConfig tiny(Pooling pooling = Pooling::attention) {
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 12, c.encoder.max_tokens = 64;
  c.encoder.heads = "mha:heads=2+gated:source=input,act=silu";
  c.labels = {"card", "loan", "rate"};
  c.pooling = pooling, c.pool_queries = 2;
  c.ngrams = {.buckets = 50, .pieces = 2, .chars_least = 2, .chars_most = 3};
  c.chunk_tokens = 32, c.chunk_overlap = 8;
  return c;
}

const std::vector<std::string> kTexts = {"my card", "", "the loan rate pays my fee, my card pays the loan",
                                         "卡款 rate", "zzzz \xff q!"};

TEST(Recognizer, PoolingAndScoresHaveTheirGradients) {
  for (const Pooling pooling :
       {Pooling::attention, Pooling::labels, Pooling::mean, Pooling::first, Pooling::peak}) {
    Bench bench;
    Recognizer model(tiny(pooling), vocabulary(), 1, DType::f64);
    // The long text lies in two chunks.
    const std::vector<std::string> texts = {
        "my card", "a b c d e f g h i j k l m n o p q r s t u v w x y z card loan my the fee rate pay"};
    const TextBatch batch = model.batch(texts);
    ASSERT_EQ(batch.chunks.size(), 4u);
    Recognizer::Saved saved;
    expect_gradients(
        {.name = std::string(name_of(pooling)),
         .params = model.params(),
         .inputs = {},
         .call = [&] { return bench.call({}, true); },
         .forward = [&](Call& call,
                        bool keep) { return model.forward(batch, call, keep ? &saved : nullptr); },
         .backward =
             [&](const InputView& dy, Call& call) {
               model.backward(dy, call, saved);
               return std::vector<AnyView>{};
             }});
  }
}

TEST(Recognizer, ABatchHasTheBitsOfOneTextAtATime) {
  for (const Pooling pooling : {Pooling::attention, Pooling::labels, Pooling::first, Pooling::peak}) {
    RecognizerConfig c = tiny(pooling);
    c.encoder.model_dim = 64, c.encoder.feed_dim = 96;
    const Recognizer model(c, vocabulary(), 3);
    Session one({.threads = 1}), two({.threads = 2});
    const std::vector<Prediction> together = model.predict(kTexts, two);
    ASSERT_EQ(together.size(), kTexts.size());
    for (std::size_t i = 0; i < kTexts.size(); ++i)
      EXPECT_EQ(together[i].probability, model.predict(kTexts[i], one).probability) << kTexts[i];
  }
  Session session;
  EXPECT_TRUE(Recognizer(tiny(), vocabulary(), 1).predict(std::vector<std::string>{}, session).empty());
}

TEST(Recognizer, PackedWeightsGiveTheSameBits) {
  const Folder folder;
  for (const Pooling pooling : {Pooling::attention, Pooling::labels, Pooling::mean}) {
    RecognizerConfig c = tiny(pooling);
    c.encoder.model_dim = 72, c.encoder.feed_dim = 100;
    const Recognizer made(c, vocabulary(), 3);
    EXPECT_EQ(made.packed_weights(), nullptr);
    made.save(folder.at("model"));
    Recognizer loaded = Recognizer::load(folder.at("model"));
    Session session;
    for (int turn = 0; turn < 2; ++turn)
      for (const std::string& t : kTexts)
        EXPECT_EQ(loaded.predict(t, session).probability, made.predict(t, session).probability) << t;
    ASSERT_NE(loaded.packed_weights(), nullptr);
    // Of every block: q, k and v together, output, gate, two of the feed-forward layer and the last.
    const std::size_t count = loaded.packed_weights()->count();
    EXPECT_GE(count, 8u);
    loaded.predict(kTexts, session);
    EXPECT_EQ(loaded.packed_weights()->count(), count);
    // Who changes weights is answered with the changed ones.
    Recognizer other(c, vocabulary(), 4);
    for (std::size_t i = 0; i < other.params().all().size(); ++i)
      copy_rows(other.params().all()[i].value, loaded.params().all()[i].value);
    EXPECT_EQ(loaded.predict(kTexts[0], session).probability, other.predict(kTexts[0], session).probability);
  }
}

TEST(Recognizer, ATextWithinOneChunkKeepsItsBits) {
  RecognizerConfig c = tiny();
  const Recognizer small(c, vocabulary(), 3);
  c.chunk_tokens = 64, c.chunk_overlap = 0;
  const Recognizer whole(c, vocabulary(), 3);
  c.long_text = LongText::sparse;
  const Recognizer sparse(c, vocabulary(), 3);
  c.long_text = LongText::whole;
  const Recognizer one_piece(c, vocabulary(), 3);
  Session session;
  for (const std::string& t : kTexts) {
    EXPECT_EQ(one_piece.predict(t, session).probability, whole.predict(t, session).probability);
    EXPECT_EQ(small.predict(t, session).probability, whole.predict(t, session).probability);
    EXPECT_EQ(sparse.predict(t, session).probability, whole.predict(t, session).probability);
  }
}

TEST(Chunks, EveryTokenSpeaksOnce) {
  for (Index total = 0; total < 60; ++total)
    for (const Index overlap : {Index{0}, Index{1}, Index{4}, Index{7}}) {
      Encoding e;
      for (Index i = 0; i < total + 2; ++i)
        e.ids.push_back(static_cast<TokenId>(i)), e.spans.push_back({i, i + 1});
      TextBatch batch;
      batch.add(e, {.tokens = 10, .overlap = overlap});
      std::vector<TokenId> spoken;
      for (const Index row : batch.rows) spoken.push_back(batch.ids[static_cast<std::size_t>(row)]);
      EXPECT_EQ(spoken, e.ids) << total << ' ' << overlap;
      for (std::size_t i = 1; i < batch.chunks.size(); ++i)
        EXPECT_LE(batch.chunks[i] - batch.chunks[i - 1], 10);
    }
}

TEST(Recognizer, SparseReadsALongTextInOnePiece) {
  RecognizerConfig c = tiny();
  c.encoder.max_tokens = 600, c.chunk_tokens = 128, c.chunk_overlap = 16;
  c.long_text = LongText::sparse;
  const Recognizer sparse(c, vocabulary(), 3);
  std::string longer;
  for (int i = 0; i < 400; ++i) longer += i % 3 ? "card " : "loan ";
  const TextBatch batch = sparse.batch(std::span(&longer, 1));
  EXPECT_EQ(batch.chunks.size(), 2u);
  c.long_text = LongText::chunks;
  const Recognizer chunks(c, vocabulary(), 3);
  EXPECT_GT(chunks.batch(std::span(&longer, 1)).chunks.size(), 4u);
  Session session;
  const Prediction a = sparse.predict(longer, session), b = chunks.predict(longer, session);
  EXPECT_NE(a.probability, b.probability);  // another model of a long text, not the same numbers
  for (int i = 0; i < 400; ++i) longer += "rate ";
  EXPECT_EQ(sparse.batch(std::span(&longer, 1)).cut, 1);
}

TEST(Recognizer, WholeIsOneChunkThatHoldsAll) {
  RecognizerConfig c = tiny();
  c.encoder.heads = "mha:heads=2+reach:near=4,near_heads=1,middle_heads=0";
  c.encoder.max_tokens = c.chunk_tokens = 600, c.chunk_overlap = 0;
  const Recognizer chunks(c, vocabulary(), 3);
  c.long_text = LongText::whole, c.chunk_tokens = 64;
  const Recognizer whole(c, vocabulary(), 3);
  std::string longer;
  for (int i = 0; i < 400; ++i) longer += i % 3 ? "card " : "loan ";
  Session session;
  EXPECT_EQ(whole.predict(longer, session).probability, chunks.predict(longer, session).probability);
}

TEST(Recognizer, SeveralLabelsByThreshold) {
  RecognizerConfig c = tiny();
  c.multi_label = true;
  Recognizer model(c, vocabulary(), 1);
  Tensor logits(DType::f32, {3, 3});
  const float x[] = {2, -3, 1, -1, -2, -3, 3, 3, 3};
  std::copy(std::begin(x), std::end(x), logits.values<float>().begin());
  EXPECT_EQ(model.judge(logits.view(), 0).labels, (std::vector<Index>{0, 2}));
  EXPECT_EQ(model.judge(logits.view(), 1).labels, (std::vector<Index>{0}));  // at least one
  EXPECT_EQ(model.judge(logits.view(), 2).labels.size(), 3u);
  model.set_thresholds(0.5, 0.4);
  EXPECT_TRUE(model.judge(logits.view(), 1).out_of_scope);
  EXPECT_TRUE(model.judge(logits.view(), 1).labels.empty());
  EXPECT_SAYS(model.set_thresholds(0.5, 2), "out_of_scope is 2");
}

TEST(Recognizer, AFilledEncoderIsTaken) {
  const Recognizer from(tiny(), vocabulary(), 5);
  const Recognizer to(tiny(), vocabulary(), from.params(), 6);
  Index taken = 0;
  for (std::size_t i = 0; i < to.params().all().size(); ++i) {
    const Param &a = from.params().all()[i], &b = to.params().all()[i];
    const bool encoder = b.name.starts_with("stack.") || b.name.starts_with("embed.");
    if (!encoder && b.name != "labels.weight") continue;
    taken += encoder;
    EXPECT_EQ(std::memcmp(a.value.data, b.value.data, a.bytes()) == 0, encoder) << b.name;
  }
  EXPECT_GT(taken, 20);
  RecognizerConfig other = tiny();
  other.encoder.feed_dim = 16;
  EXPECT_SAYS(Recognizer(other, vocabulary(), from.params(), 6), "give one of the same config");
}

TEST(ModelFolder, WhatIsSavedIsLoaded) {
  const Folder folder;
  RecognizerConfig c = tiny(Pooling::labels);
  c.multi_label = true, c.threshold = 0.37, c.out_of_scope = 0.2, c.encoder.norm.eps = 1e-12;
  c.labels = {"card \"x\"", "贷款", "rate"};
  const Recognizer model(c, vocabulary(), 7);
  const FolderFile metrics{"metrics.json", "{}\n"};
  model.save(folder.at("model"), std::span(&metrics, 1));
  model.save(folder.at("model") + "/", std::span(&metrics, 1));            // replaced
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.at("")), {}), 1);  // nothing is left beside it
  const Recognizer again = Recognizer::load(folder.at("model"));
  EXPECT_EQ(config_text(again.config()), config_text(model.config()));
  EXPECT_EQ(again.config().labels, c.labels);
  Session session;
  for (const std::string& t : kTexts)
    EXPECT_EQ(again.predict(t, session).probability, model.predict(t, session).probability);
  EXPECT_TRUE(fs::exists(folder.at("model/metrics.json")));
}

TEST(ModelFolder, AnyHeadThatIsSavedIsLoaded) {
  const Folder folder;
  for (const char* heads : {"entmax:heads=2,alpha=1.3333", "collaborative:heads=2,scale=0.1768",
                            "differential:heads=2,start=0.12345", "dcmha:heads=2,window=2048",
                            "mha:heads=2,dim=2000", "mha:heads=2+gated:heads=4096"}) {
    RecognizerConfig c = tiny();
    c.encoder.heads = heads;
    const Recognizer model(c, vocabulary(), 7);
    model.save(folder.at("model"));
    EXPECT_EQ(refusal_of([&] { Recognizer::load(folder.at("model")); }), "") << heads;
  }
}

void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path, std::ios::binary);
  std::string s((std::istreambuf_iterator<char>(in)), {});
  const std::size_t at = s.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  s.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << s;
}

TEST(ModelFolder, DamageIsOneSentence) {
  const Folder folder;
  const Recognizer model(tiny(), vocabulary(), 7);
  const std::string path = folder.at("model");
  const auto fresh = [&] { model.save(path); };
  EXPECT_SAYS(Recognizer::load(path), "is no folder");
  for (const char* file : {"config.json", "vocab.txt", "labels.txt", "model.safetensors"}) {
    fresh();
    fs::remove(path + '/' + file);
    EXPECT_SAYS(Recognizer::load(path), std::string("has no ") + file);
    fs::remove_all(path);
  }
  fresh();
  replace_in(path + "/config.json", "\"version\": 1", "\"version\": 2");
  EXPECT_SAYS(Recognizer::load(path), "version 2 but this headwise reads up to 1; update headwise");
  fresh();
  replace_in(path + "/config.json", "\"depth\"", "\"deepness\": 1,\n  \"depth\"");
  EXPECT_SAYS(Recognizer::load(path), "deepness");
  fresh();
  replace_in(path + "/config.json", "\"pooling\": \"attention\"", "\"pooling\": \"best\"");
  EXPECT_SAYS(Recognizer::load(path), "attention, labels, mean, first");
  fresh();
  replace_in(path + "/config.json", "\"model_dim\": 8", "\"model_dim\": 4096");
  EXPECT_SAYS(Recognizer::load(path), "two models");
  fresh();
  replace_in(path + "/config.json", "\"depth\": 2", "\"depth\": 2000000");
  EXPECT_SAYS(Recognizer::load(path), "two models");
  fresh();
  replace_in(path + "/config.json", "\"feed_dim\": 12", "\"feed_dim\": 1200000000");
  EXPECT_SAYS(Recognizer::load(path), "feed_dim is 1200000000 but");
  fresh();
  replace_in(path + "/config.json", "mha:heads=2", "mha:heads=2,dim=900000000");
  EXPECT_SAYS(Recognizer::load(path), "must be an integer up to 1048576");
  fresh();
  replace_in(path + "/config.json", "mha:heads=2", "mha:heads=2,dim=900000");
  EXPECT_SAYS(Recognizer::load(path), "settings are those of another model");
  fresh();
  replace_in(path + "/labels.txt", "loan\n", "");
  EXPECT_SAYS(Recognizer::load(path), "labels.txt is 2 but labels.bias has 3");
  fresh();
  fs::resize_file(path + "/model.safetensors", fs::file_size(path + "/model.safetensors") - 4);
  EXPECT_FALSE(refusal_of([&] { Recognizer::load(path); }).empty());
  fresh();
  {
    std::fstream f(path + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-5, std::ios::end);
    f.put('\x7b');
  }
  EXPECT_SAYS(Recognizer::load(path), "damaged");
  const struct {
    const char *file, *from, *to;
  } changes[] = {{"labels.txt", "card\nloan\n", "loan\ncard\n"},
                 {"vocab.txt", "\nfee\n", "\nfew\n"},
                 {"config.json", "\"threshold\": 0.5", "\"threshold\": 0.6"}};
  for (const auto& change : changes) {
    fresh();
    replace_in(path + '/' + change.file, change.from, change.to);
    EXPECT_SAYS(Recognizer::load(path), "config.json, vocab.txt and labels.txt are not those");
    // A folder of an older version has no such sum.
    replace_in(path + "/model.safetensors", "files_crc32c", "other_crc32c");
    EXPECT_EQ(refusal_of([&] { Recognizer::load(path); }), "");
  }
}

/// Layers that share weights need no file: 2^31 of them hung.
TEST(ModelFolder, DepthHasALimit) {
  const Folder folder;
  RecognizerConfig c = tiny();
  c.encoder.share_layers = c.encoder.depth;
  Recognizer(c, vocabulary(), 7).save(folder.at("model"));
  const std::string config = folder.at("model/config.json");
  replace_in(config, "\"depth\": 2", "\"depth\": 2147483648");
  replace_in(config, "\"share_layers\": 2", "\"share_layers\": 2147483648");
  EXPECT_SAYS(Recognizer::load(folder.at("model")), "depth is 2147483648; give 0 to 1024 layers");
}

/// 4 KiB on the disk, a tebibyte by its header: the config does not ask for that tensor.
TEST(ModelFolder, TensorsNobodyAskedForAreNotRead) {
  const Folder folder;
  Recognizer(tiny(), vocabulary(), 7).save(folder.at("model"));
  const std::string path = folder.at("model/model.safetensors");
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const std::uint64_t data = bytes.size() - 8 - header, more = std::uint64_t{1} << 40;
  std::string words = bytes.substr(8, header);
  words.erase(words.rfind('}'));
  words += text(",\"zzz\":{\"dtype\":\"U8\",\"shape\":[", more, "],\"data_offsets\":[", data, ',',
                data + more, "]}}");
  header = words.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &header, 8);
  out += words + bytes.substr(bytes.size() - data);
  std::ofstream(path, std::ios::binary) << out;
  std::error_code none;
  fs::resize_file(path, out.size() + more, none);
  if (none) GTEST_SKIP() << "no sparse files here";
  EXPECT_SAYS(Recognizer::load(folder.at("model")), "tensors but the config makes");
}

/// Weights with a right sum that are no numbers, and finite ones whose scores are none.
TEST(ModelFolder, WeightsThatAreNoNumbersAreRefused) {
  const Folder folder;
  const std::string path = folder.at("model");
  Recognizer model(tiny(), vocabulary(), 7);
  model.save(path);
  Safetensors file(path + "/model.safetensors", {.reading = Reading::copied});
  std::vector<NamedTensor> tensors;
  Crc32c crc;
  for (Param& p : model.params().all()) {
    if (p.name == "labels.bias")
      store_double(p.value.data, p.value.dtype, 0, std::numeric_limits<double>::quiet_NaN());
    crc.add(p.name);
    crc.add(std::span(static_cast<const std::byte*>(p.value.data), p.bytes()));
    tensors.push_back({p.name, p.value});
  }
  write_safetensors(path + "/model.safetensors", tensors,
                    {{"format", "headwise"}, {"crc32c", std::to_string(crc.value())}});
  EXPECT_SAYS(Recognizer::load(path), "labels.bias in model.safetensors holds a number that is not finite");
  Recognizer large(tiny(), vocabulary(), 7);
  for (Param& p : large.params().all())
    if (p.name == "labels.weight")
      for (Index i = 0; i < p.value.count(); ++i)
        store_double(p.value.data, p.value.dtype, i, i % 2 ? 3e38 : -3e38);
  Session session({.threads = 1});
  const std::string card = "card";
  EXPECT_SAYS(large.predict(card, session), "scores of this text are no numbers");
}

TEST(ModelFolder, NothingElseIsReplaced) {
  const Folder folder;
  const Recognizer model(tiny(), vocabulary(), 7);
  fs::create_directories(folder.at("mine"));
  std::ofstream(folder.at("mine/letter.txt")) << "dear";
  EXPECT_SAYS(model.save(folder.at("mine")), "nothing was written");
  EXPECT_TRUE(fs::exists(folder.at("mine/letter.txt")));
  std::ofstream(folder.at("file")) << "x";
  EXPECT_SAYS(model.save(folder.at("file")), "nothing was written");
  EXPECT_SAYS(model.save(folder.at("file/below")), "file");
}

TEST(Recognizer, SettingsThatCannotWorkAreOneSentence) {
  const auto says = [](const std::function<void(RecognizerConfig&)>& change, const char* words) {
    RecognizerConfig c = tiny();
    change(c);
    EXPECT_SAYS(Recognizer(c, vocabulary(), 1), words);
  };
  says([](auto& c) { c.labels = {"one"}; }, "two or more");
  says([](auto& c) { c.labels = {"a", "b", "a"}; }, "twice");
  says([](auto& c) { c.labels = {"a", "b\nc"}; }, "line end");
  says([](auto& c) { c.pool_queries = 0; }, "pool_queries");
  says([](auto& c) { c.chunk_overlap = 31; }, "overlap");
  says([](auto& c) { c.chunk_tokens = 512; }, "positions");
  says([](auto& c) { c.encoder.heads = "mho:heads=2"; }, "there is no head");
  says([](auto& c) { c.ngrams.buckets = -1; }, "ngram_buckets is -1");
  says([](auto& c) { c.encoder.dropout = -1; }, "dropout is -1");
  says([](auto& c) { c.encoder.dropout = std::nan(""); }, "dropout is nan");
  // Its mask alone had 2^28 blocks: 4 GB before a refusal.
  const auto sparse = [](auto& c) {
    c.long_text = LongText::sparse, c.encoder.positions = Positions::rope;
    c.encoder.max_tokens = 1 << 20, c.chunk_tokens = Index{1} << 31;
  };
  says(sparse, "268435456 blocks of 64 tokens are open, at most 4194304 may be");
  RecognizerConfig wide = tiny();
  sparse(wide), wide.chunk_tokens = 4096;
  EXPECT_EQ(refusal_of([&] { check(wide); }), "");
}

}  // namespace
}  // namespace headwise
