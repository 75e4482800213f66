#include "headwise/intent/training/compound_learner.h"

#include <cmath>

#include "headwise/ops/row/cross_entropy.h"

namespace headwise {
namespace {

constexpr double kWholeWeight = 0.5, kPieceWeight = 2;  // of the classes of compounds and of pieces

/// Rows [first, first + count) of a packed matrix.
AnyView some_rows(const AnyView& v, Index first, Index count) {
  auto* data = static_cast<std::byte*>(v.data) + first * v.step[0] * size_of(v.dtype);
  return AnyView::packed(data, v.dtype, {count, v.size[1]});
}

}  // namespace

/// Texts of one step: compounds, then pieces.
struct CompoundLearner::Drawn {
  TextBatch batch;
  std::vector<std::vector<TokenMark>> marks;  // of the compounds' tokens
  std::vector<Index> labels;                  // of all
};

CompoundLearner::CompoundLearner(const Recognizer& model, const JoinedTexts& texts,
                                 const TrainingOptions& options, Session& session)
    : model_(model), texts_(texts), options_(options), session_(session) {
  const Encoding empty = model.encode("");
  cls_ = empty.ids.front(), sep_ = empty.ids.back();
  const Vocabulary& v = model.tokenizer().vocabulary();
  mask_ = v.find("[MASK]") >= 0 ? v.find("[MASK]") : model.tokenizer().unknown();
}

void CompoundLearner::draw(const MicroBatch& micro, Drawn& drawn) const {
  const auto count = static_cast<std::uint32_t>(micro.examples.size());
  for (const bool compound : {true, false}) {
    const double p = compound ? options_.compound_dropout : options_.token_dropout;
    const std::uint32_t threshold = DropoutRule::of(p, 0).threshold, stream = compound ? 0x70cfu : 0x70d0u;
    for (std::uint32_t i = 0; i < count; ++i) {
      DrawnText text = compound ? texts_.compound(micro.seed, i) : texts_.piece(micro.seed, i);
      for (std::size_t t = 0; t < text.ids.size(); ++t)
        if (Philox::block(micro.seed, {static_cast<std::uint32_t>(t / 4), i, 0, stream})[t % 4] < threshold)
          text.ids[t] = mask_;
      Encoding e;
      e.ids.push_back(cls_);
      e.ids.insert(e.ids.end(), text.ids.begin(), text.ids.end());
      e.ids.push_back(sep_);
      e.spans.resize(e.ids.size());
      model_.add_to(drawn.batch, e);
      drawn.labels.push_back(text.label);
      if (compound) drawn.marks.push_back(std::move(text.marks));
    }
  }
}

double CompoundLearner::tag_loss(const AnyView& tags, const Drawn& drawn, double weight,
                                 const AnyView& dtags) const {
  fill_zeros(dtags);
  double loss = 0;
  for (std::size_t b = 0; b < drawn.marks.size(); ++b)
    for (std::size_t t = 0; t < drawn.marks[b].size(); ++t) {
      const Index row = drawn.batch.rows[static_cast<std::size_t>(drawn.batch.texts[b]) + 1 + t];
      const TokenMark mark = drawn.marks[b][t];
      for (Index c = 0; c < 2; ++c) {
        if (c == 0 && t == 0) continue;  // an intent always begins there
        const double x = load_double(tags.data, tags.dtype, row * tags.step[0] + c);
        const bool wanted = mark == (c == 0 ? TokenMark::start : TokenMark::connector);
        const double z = wanted ? x : -x;
        // -ln sigmoid(z), and its slope in x
        loss += std::max(-z, 0.0) + std::log1p(std::exp(-std::abs(z)));
        store_double(dtags.data, dtags.dtype, row * 2 + c, weight * (wanted ? -1 : 1) / (1 + std::exp(z)));
      }
    }
  return loss;
}

double CompoundLearner::learn(const MicroBatch& micro) {
  session_.memory.reset();
  Call call{.ctx = session_.ctx,
            .memory = session_.memory,
            .training = true,
            .seed = micro.seed,
            .step = static_cast<std::uint64_t>(micro.step)};
  Drawn drawn;
  draw(micro, drawn);
  AnyView tags;
  const AnyView logits = model_.forward(drawn.batch, call, &saved_, &tags);
  const auto count = static_cast<Index>(micro.examples.size());
  const double share = 1 / static_cast<double>(count);
  const AnyView dtags = session_.memory.take(tags.dtype, {tags.size[0], 2}),
                dlogits = session_.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
  double loss = share * tag_loss(tags, drawn, micro.weight * share, dtags);
  for (const Index first : {Index{0}, count}) {
    const double weight = first == 0 ? kWholeWeight : kPieceWeight;
    const AnyView y = AnyView::packed(drawn.labels.data() + first, DType::i64, {count});
    loss += weight * share *
            cross_entropy(some_rows(logits, first, count), y, {.label_smoothing = options_.label_smoothing},
                          some_rows(dlogits, first, count), micro.weight * weight * share, session_.ctx)
                .loss;
  }
  call.loss_weight = micro.weight;
  model_.backward(dlogits, call, saved_, dtags);
  return loss + call.loss;
}

}  // namespace headwise
