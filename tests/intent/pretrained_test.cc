// A recogniser from a pretrained encoder: what it begins with, what learns, what it becomes.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/training/pretrained.h"

#include <gtest/gtest.h>

#include "headwise/intent/training/train_words.h"
#include "tests/base/sentence.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

Corpus cards(Index count) {
  Corpus c{.name = "cards", .rows = {}};
  for (Index i = 0; i < count; ++i) {
    const bool lost = i % 2 == 0;
    c.rows.push_back({.text = text(i % 3 ? "my " : "", i % 5 ? "cards " : "card ", lost ? "lost" : "pay"),
                      .labels = {lost ? "lost_card" : "payment"},
                      .extra = {},
                      .line = i + 1});
  }
  return c;
}

TEST(Pretrained, IsTheFoldersEncoder) {
  const TinyBert tiny;
  const Pretrained p = read_pretrained(tiny.folder.path());
  EXPECT_EQ(p.config.encoder.heads, "mha:heads=2,dim=4");
  EXPECT_EQ(p.config.chunk_tokens, 7);
  EXPECT_EQ(p.config.pooling, Pooling::mean);
  const Corpus train = cards(8);
  const Start start = from_encoder(p.config, p.vocabulary, p.encoder, train, {});
  const Recognizer model(start.config, start.vocabulary, *start.encoder, 1, DType::f64);
  Session session({.threads = 1});
  const std::string words[] = {"my card"};
  Call call{.ctx = session.ctx, .memory = session.memory};
  Recognizer::Saved saved;
  const TextBatch batch = model.batch(words);
  model.forward(batch, call, &saved);
  const Matrix want = tiny.rows({2, 4, 5, 3});  // [CLS] my card [SEP]
  for (Index i = 0; i < saved.rows.count(); ++i)
    EXPECT_NEAR(
        load_double(saved.rows.data, DType::f64, i),
        want[static_cast<std::size_t>(i / TinyBert::kWidth)][static_cast<std::size_t>(i % TinyBert::kWidth)],
        1e-12);
}

TEST(Pretrained, NoWordIsPassedOver) {
  const TinyBert tiny;
  const Pretrained p = read_pretrained(tiny.folder.path());
  TrainWords chunks;
  say(chunks, "chunk-tokens", "5");
  EXPECT_EQ(config_of(chunks, &p).chunk_tokens, 5);
  constexpr std::pair<const char*, const char*> own[] = {
      {"heads", "mha:heads=2"}, {"model-dim", "64"}, {"depth", "1"},
      {"feed-dim", "64"},       {"max-tokens", "9"}, {"vocabulary", "300"},
      {"ngrams", "100"},        {"norm", "rms"},     {"positions", "rope"}};
  for (const auto& [word, value] : own) {
    TrainWords words;
    say(words, word, value);
    EXPECT_EQ(
        sentence_of(ErrorKind::bad_argument, [&] { config_of(words, &p); }),
        text("train: --from brings heads, sizes, words, norms and positions of its own; leave out --", word));
  }
}

TEST(Pretrained, TunesAndKeepsItsFolder) {
  const TinyBert tiny;
  const Pretrained p = read_pretrained(tiny.folder.path());
  TrainingOptions o = fine_tuning();
  o.epochs = 20, o.batch = 8, o.rate = 0.05, o.encoder_rate = 0.1;
  const Corpus train = cards(60), dev = cards(20);
  Session session({.threads = 1});
  const Start start = from_encoder(p.config, p.vocabulary, p.encoder, train, o);
  const TrainedRecognizer made = train_recognizer(start, train, dev, o, session);
  EXPECT_EQ(made.dev.exact.value(), 1) << made.dev.print();
  // The table of words stays; blocks move, the upper one at the rate of the encoder.
  const auto moved = [&](const char* name) {
    double most = 0;
    for (const Param& now : made.model.params().all())
      for (const Param& then : p.encoder.all())
        if (now.name == name && then.name == name)
          for (Index i = 0; i < now.value.count(); ++i)
            most = std::max(most, std::abs(load_double(now.value.data, now.value.dtype, i) -
                                           load_double(then.value.data, then.value.dtype, i)));
    return most;
  };
  EXPECT_EQ(moved("embed.table"), 0);
  EXPECT_GT(moved("stack.layers.0.feed.in.weight"), 1e-4);
  EXPECT_GT(moved("stack.layers.1.feed.in.weight"), 1e-4);
  made.model.save(tiny.folder / "model");
  const Recognizer again = Recognizer::load(tiny.folder / "model");
  EXPECT_EQ(again.config().encoder.norm.eps, 1e-12);
  const Prediction a = made.model.predict("my card lost", session),
                   b = again.predict("my card lost", session);
  EXPECT_EQ(a.probability, b.probability);
  EXPECT_EQ(again.config().labels[static_cast<std::size_t>(b.labels.at(0))], "lost_card");
}

TEST(Pretrained, AVocabularyMayBeSmallerThanTheTable) {
  const TinyBert tiny;
  tiny.folder.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nmy\ncard\n");
  const Pretrained p = read_pretrained(tiny.folder.path());
  EXPECT_EQ(p.config.encoder.vocabulary, 6);
  for (const Param& param : p.encoder.all())
    if (param.name == "embed.table") {
      EXPECT_EQ(text(param.value), "f32 [6 8]");
    }
  tiny.folder.file("vocab.txt", std::string(TinyBert::kVocabulary) + "more\n");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { read_pretrained(tiny.folder.path()); }),
            "text encoder: " + tiny.folder.path() +
                ": vocab.txt has 13 pieces but config.json a vocab_size of 12; they are of different models");
}

}  // namespace
}  // namespace headwise
