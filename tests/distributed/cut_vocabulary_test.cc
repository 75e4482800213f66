// Laws of a vocabulary cut over ranks: token rows, logits, loss and every gradient have one set of bits on 1,
// 2, 4 and 8 ranks, and agree with the whole operations.
#include "headwise/layers/basic/cut_vocabulary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/distributed/slices.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/ops/row/embedding.h"

namespace headwise {
namespace {

constexpr Index kDim = 4;

struct Setting {
  Index vocabulary = 33003;  // leaves of 4,126 classes: two blocks each
  DType dtype = DType::f32;
  double smoothing = 0.1;
  Index odd = -1;  // a class whose logits are `value`
  double value = 0;
};

std::string bytes_of(const AnyView& v) {
  return {static_cast<const char*>(v.data), static_cast<std::size_t>(v.count() * size_of(v.dtype))};
}
void draw(const AnyView& v, std::uint64_t key, double scale) {
  for (Index i = 0; i < v.count(); ++i) store_double(v.data, v.dtype, i, scale * normal_at(key, i));
}
std::vector<Index> ids_of(Index vocabulary) {
  return {0, vocabulary - 1, vocabulary / 2, 3, 3, vocabulary / 8 * 5, 1, vocabulary - 1};
}

/// What every rank holds whole, or what is joined of all: with one rank the whole thing.
struct Result {
  std::string rows, logits, dlogits, dx, dtable;
  double loss = 0;
  Index counted = 0, sent = 0, sent_by_loss = 0;
};

Result run(const Setting& s, int ranks) {
  Result result;
  run_ranks(
      ranks,
      [&](Communicator& team) {
        Context ctx({.threads = 1});
        const Teams teams{.tensor = &team, .order = Order::tree};
        const Index rows = round_up(s.vocabulary, kMostLeaves);
        ParamSet whole(s.dtype, 1), mine(s.dtype, 1);
        const Learned table = whole.add("words.table", {rows, kDim});
        draw(table.value(), 5, 1.5);
        const CutVocabulary words(mine, "words", s.vocabulary, kDim, teams);
        take_slices(whole, mine, team);
        mine.make_grads(), whole.make_grads();
        StepMemory memory;
        Call call{.ctx = ctx, .memory = memory};
        std::vector<Index> ids = ids_of(s.vocabulary), labels = ids;
        labels[2] = -100;
        const auto count = static_cast<Index>(ids.size());
        const ConstView tokens = ConstView::packed(ids.data(), DType::i64, {count}),
                        wanted = ConstView::packed(labels.data(), DType::i64, {count});
        Result own;
        const AnyView x = words.embed(tokens, call);
        own.sent = team.counted().bytes;
        own.rows = bytes_of(x);
        const AnyView logits = words.logits(x, call);
        if (s.odd >= words.own().begin && s.odd < words.own().begin + words.own().size)
          for (Index r = 0; r < count; ++r)
            store_double(logits.data, s.dtype, r * words.own().size + s.odd - words.own().begin, s.value);
        const AnyView joined = memory.take(s.dtype, {count, rows});
        team.gather(logits, joined, 1);
        own.logits = bytes_of(joined);
        const Index before = team.counted().bytes;
        const LossSum loss = words.loss(logits, wanted, {.label_smoothing = s.smoothing}, logits, 0.25, call);
        own.sent_by_loss = team.counted().bytes - before;
        own.loss = loss.loss, own.counted = loss.counted;
        team.gather(logits, joined, 1);
        own.dlogits = bytes_of(joined);
        const AnyView dx = words.logits_backward(logits, x, call);
        own.dx = bytes_of(dx);
        words.embed_backward(tokens, dx, call);
        join_slices("words.table", mine.all()[0].grad, whole.all()[0].grad, team);
        own.dtable = bytes_of(whole.all()[0].grad);
        if (team.rank() == 0) result = own;
      },
      {.check = true});
  return result;
}

/// The same by the whole operations, in double.
Result whole(const Setting& s) {
  Context ctx({.threads = 1});
  const Index rows = round_up(s.vocabulary, kMostLeaves);
  ParamSet params(DType::f64, 1);
  const Learned table = params.add("words.table", {rows, kDim});
  for (Index i = 0; i < rows * kDim; ++i) {  // the numbers that a cut one rounds
    double rounded = 1.5 * normal_at(5, i);
    if (s.dtype == DType::f32) rounded = static_cast<double>(static_cast<float>(rounded));
    store_double(table.value().data, DType::f64, i, rounded);
  }
  StepMemory memory;
  std::vector<Index> ids = ids_of(s.vocabulary), labels = ids;
  labels[2] = -100;
  const auto count = static_cast<Index>(ids.size());
  const AnyView x = memory.take(DType::f64, {count, kDim}),
                logits = memory.take(DType::f64, {count, s.vocabulary});
  embedding(table.value(), ConstView::packed(ids.data(), DType::i64, {count}), 1, x, ctx);
  AnyView real = table.value();
  real.size[0] = s.vocabulary;
  projection({.x = x, .weight = real, .out = logits}, Activation::none, ctx);
  if (s.odd >= 0)
    for (Index r = 0; r < count; ++r)
      store_double(logits.data, DType::f64, r * s.vocabulary + s.odd, s.value);
  const LossSum loss = cross_entropy(logits, ConstView::packed(labels.data(), DType::i64, {count}),
                                     {.label_smoothing = s.smoothing}, logits, 0.25, ctx);
  return {.rows = {},
          .logits = {},
          .dlogits = bytes_of(logits),
          .dx = {},
          .dtable = {},
          .loss = loss.loss,
          .counted = loss.counted};
}

/// The largest difference of gradients from those of the whole; classes of no token must be 0.
double worst(const Setting& s, const Result& cut, const Result& all) {
  const Index rows = round_up(s.vocabulary, kMostLeaves), count = std::ssize(ids_of(s.vocabulary));
  double most = 0;
  for (Index r = 0; r < count; ++r)
    for (Index c = 0; c < rows; ++c) {
      const double want = c < s.vocabulary ? load_double(all.dlogits.data(), DType::f64, r * s.vocabulary + c)
                                           : 0,
                   got = load_double(cut.dlogits.data(), s.dtype, r * rows + c);
      most = std::max(most, std::abs(got - want));
      EXPECT_TRUE(c < s.vocabulary || got == 0) << c;
    }
  return most;
}

TEST(CutVocabulary, HasOneSetOfBitsForAnyRanks) {
  for (const Setting& s : {Setting{}, Setting{.vocabulary = 11}, Setting{.vocabulary = 4096, .smoothing = 0},
                           Setting{.dtype = DType::f64}, Setting{.vocabulary = 64, .odd = 9, .value = 80}}) {
    const Result one = run(s, 1);
    for (const int ranks : {2, 4, 8}) {
      const Result many = run(s, ranks);
      EXPECT_TRUE(many.rows == one.rows && many.logits == one.logits && many.dlogits == one.dlogits &&
                  many.dx == one.dx && many.dtable == one.dtable)
          << s.vocabulary << " on " << ranks;
      EXPECT_EQ(0, std::memcmp(&many.loss, &one.loss, sizeof(double))) << s.vocabulary << " on " << ranks;
    }
  }
}

TEST(CutVocabulary, AgreesWithTheWholeLoss) {
  for (const Setting& s : {Setting{}, Setting{.vocabulary = 11}, Setting{.smoothing = 0},
                           Setting{.dtype = DType::f64}, Setting{.vocabulary = 64, .odd = 9, .value = 80}}) {
    const Result cut = run(s, 2), all = whole(s);
    EXPECT_EQ(cut.counted, all.counted);
    const bool wide = s.dtype == DType::f64;
    EXPECT_NEAR(cut.loss / all.loss, 1, wide ? 1e-13 : 1e-6) << s.vocabulary;
    EXPECT_LT(worst(s, cut, all), wide ? 1e-15 : 1e-7) << s.vocabulary;
  }
}

TEST(CutVocabulary, KeepsInfinityAndNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  // One class of -inf, and a whole block of such: the leaf of one class.
  for (const Index vocabulary : {Index{33003}, Index{8}}) {
    const Setting s{.vocabulary = vocabulary, .smoothing = 0, .odd = 6, .value = -infinity};
    const Result cut = run(s, 4), all = whole(s);
    EXPECT_NEAR(cut.loss / all.loss, 1, 1e-6);
    EXPECT_LT(worst(s, cut, all), 1e-7);
  }
  EXPECT_TRUE(std::isnan(run({.odd = 30000, .value = std::nan("")}, 4).loss));
  EXPECT_EQ(run({.smoothing = 0.1, .odd = 6, .value = -infinity}, 2).loss, infinity);
}

TEST(CutVocabulary, RowsTravelOnce) {
  // 8 tokens of 4 numbers: a rank sends the rows it has to each of the others.
  const Index vocabulary = 64;
  for (const int ranks : {2, 4}) {
    Index own = 0;
    for (const Index id : ids_of(vocabulary)) own += id < vocabulary / ranks ? 1 : 0;
    EXPECT_EQ(run({.vocabulary = vocabulary}, ranks).sent, own * kDim * 4 * (ranks - 1));
    // The loss: top, sum and plain sum of each of 16 blocks, and the label's logit.
    EXPECT_EQ(run({}, ranks).sent_by_loss, 8 * (24 * 16 / ranks + 8) * (ranks - 1));
  }
}

TEST(CutVocabulary, RefusesInWords) {
  const auto said = [](int ranks, const std::function<void(const CutVocabulary&, Call&)>& work) {
    try {
      run_ranks(ranks, [&](Communicator& team) {
        Context ctx({.threads = 1});
        const Teams teams{.tensor = &team};
        ParamSet params(DType::f32, 1);
        StepMemory memory;
        Call call{.ctx = ctx, .memory = memory};
        work(CutVocabulary(params, "words", 10, kDim, teams), call);
      });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::vector<Index> bad = {10};
  const ConstView ids = ConstView::packed(bad.data(), DType::i64, {1});
  EXPECT_EQ(said(3, [](const CutVocabulary&, Call&) {}),
            "cut vocabulary: a vocabulary has 8 leaves, which 3 ranks do not divide; take 1, 2, 4 or 8");
  EXPECT_EQ(said(2, [&](const CutVocabulary& words, Call& call) { words.embed(ids, call); }),
            "cut vocabulary: ids[0] is 10 but there are 10 tokens; give 0 to 9");
  EXPECT_NE(said(1,
                 [&](const CutVocabulary& words, Call& call) {
                   const AnyView logits = call.memory.take(DType::f32, {1, 16});
                   fill_zeros(logits);
                   words.loss(logits, ids, {}, {}, 1, call);
                 })
                .find("labels[0] is 10 but there are 10 tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
