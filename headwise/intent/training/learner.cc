#include "headwise/intent/training/learner.h"

#include <algorithm>
#include <cmath>

#include "headwise/ops/row/cross_entropy.h"

namespace headwise {
Learner::Learner(const Recognizer& model, const Corpus& train, const TrainingOptions& options,
                 Session& session)
    : model_(model), options_(options), session_(session) {
  const std::vector<std::string>& names = model.config().labels;
  for (const Utterance& row : train.rows) {
    rows_.push_back(model.encode(row.text));
    labels_.emplace_back();
    for (const std::string& label : row.labels) {
      const auto at = std::find(names.begin(), names.end(), label);
      if (at != names.end()) labels_.back().push_back(at - names.begin());
    }
  }
  const Vocabulary& v = model.tokenizer().vocabulary();
  for (Index i = 0; i < v.size(); ++i) {
    const std::string& piece = v.piece(static_cast<TokenId>(i));
    special_.push_back(piece.size() > 2 && piece.front() == '[' && piece.back() == ']');
  }
  mask_ = v.find("[MASK]") >= 0 ? v.find("[MASK]") : model.tokenizer().unknown();
}

void Learner::drop_tokens(TextBatch& batch, std::uint64_t seed) const {
  const std::uint32_t threshold = DropoutRule::of(options_.token_dropout, 0).threshold;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    const Philox::Block words = Philox::block(seed, {static_cast<std::uint32_t>(i / 4), 0, 0, 0x70ceu});
    if (words[i % 4] < threshold && !special_[static_cast<std::size_t>(batch.ids[i])]) batch.ids[i] = mask_;
  }
}

double Learner::learn(const MicroBatch& micro) {
  session_.memory.reset();
  Call call{.ctx = session_.ctx,
            .memory = session_.memory,
            .training = true,
            .seed = micro.seed,
            .step = static_cast<std::uint64_t>(micro.step)};
  TextBatch batch;
  for (const Index e : micro.examples) model_.add_to(batch, rows_[static_cast<std::size_t>(e)]);
  if (options_.token_dropout > 0) drop_tokens(batch, micro.seed);
  const LearntGates* gates = model_.gates();
  if (gates) {
    call.head_gates = gates->drawn(micro.seed, call.memory);
    call.dhead_gates = call.memory.take(
        DType::f32, {call.head_gates.size[0], static_cast<Index>(batch.ids.size()), gates->most()});
    fill_zeros(call.dhead_gates);
  }
  const AnyView logits = model_.forward(batch, call, &saved_);
  const Index texts = logits.size[0], labels = logits.size[1];
  const double share = 1 / static_cast<double>(texts), smooth = options_.label_smoothing;
  const AnyView dlogits = session_.memory.take(logits.dtype, {texts, labels});
  LossSum sum;
  if (model_.config().multi_label) {
    const AnyView y = session_.memory.take(DType::f32, {texts, labels});
    auto* to = static_cast<float*>(y.data);
    std::fill(to, to + texts * labels, static_cast<float>(smooth / static_cast<double>(labels)));
    for (Index b = 0; b < texts; ++b)
      for (const Index l : labels_[static_cast<std::size_t>(micro.examples[static_cast<std::size_t>(b)])])
        to[b * labels + l] += static_cast<float>(1 - smooth);
    sum = binary_cross_entropy(logits, y, dlogits, micro.weight * share, session_.ctx);
  } else {
    const AnyView y = session_.memory.take(DType::i64, {texts});
    for (Index b = 0; b < texts; ++b)
      static_cast<Index*>(y.data)[b] =
          labels_[static_cast<std::size_t>(micro.examples[static_cast<std::size_t>(b)])][0];
    sum = cross_entropy(logits, y, {.label_smoothing = smooth}, dlogits, micro.weight * share, session_.ctx);
  }
  call.loss_weight = micro.weight;
  model_.backward(dlogits, call, saved_);
  double price = 0;
  if (gates) price = gates->backward(call.dhead_gates, micro.seed, options_.gate_price, micro.weight);
  return sum.loss * share + call.loss + price;
}

double mean_loss(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given) {
  double sum = 0;
  for (std::size_t i = 0; i < given.size(); ++i)
    for (std::size_t l = 0; l < config.labels.size(); ++l) {
      const std::vector<std::string>& wanted = dev.rows[i].labels;
      const bool yes = std::find(wanted.begin(), wanted.end(), config.labels[l]) != wanted.end();
      const double p = static_cast<double>(given[i].probability[l]);
      if (yes) sum -= std::log(std::max(p, 1e-7));
      if (!yes && config.multi_label) sum -= std::log(std::max(1 - p, 1e-7));
    }
  return given.empty() ? 0 : sum / static_cast<double>(given.size());
}

}  // namespace headwise
