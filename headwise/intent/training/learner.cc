#include "headwise/intent/training/learner.h"

#include <algorithm>
#include <cmath>

#include "headwise/layers/basic/team_rows.h"
#include "headwise/train/steps/late_loss.h"

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

/// A text with one label has a softmax over them, and what has none stands behind what has one.
std::vector<Index> Learner::in_order(std::span<const Index> examples) const {
  std::vector<Index> order(examples.begin(), examples.end());
  if (!model_.config().multi_label)
    std::stable_partition(order.begin(), order.end(), [&](Index e) { return has_label(e); });
  return order;
}

/// Of several labels a text: what has none is 0 of each.
double Learner::loss_of_several(std::span<const Index> examples, const Losses& l, Call& call) const {
  const Index texts = l.logits.size[0], labels = l.logits.size[1];
  const double smooth = options_.label_smoothing;
  const AnyView y = session_.memory.take(DType::f32, {texts, labels});
  auto* to = static_cast<float*>(y.data);
  std::fill(to, to + texts * labels, static_cast<float>(smooth / static_cast<double>(labels)));
  for (Index b = 0; b < texts; ++b)
    for (const Index label : labels_[static_cast<std::size_t>(examples[static_cast<std::size_t>(b)])])
      to[b * labels + label] += static_cast<float>(1 - smooth);
  if (!l.there.given()) return binary_cross_entropy(l.logits, y, l.dlogits, l.weight, session_.ctx).loss;
  late_binary_cross_entropy(l.logits, y, l.dlogits, l.weight, l.there, call);
  return 0;
}

/// Of one label a text: for what has none, each is as likely as any other.
double Learner::loss_of_one(std::span<const Index> examples, const Losses& l, Call& call) const {
  const Index texts = l.logits.size[0];
  const AnyView y = session_.memory.take(DType::i64, {texts});
  for (Index b = 0; b < texts; ++b) {
    const auto& own = labels_[static_cast<std::size_t>(examples[static_cast<std::size_t>(b)])];
    static_cast<Index*>(y.data)[b] = own.empty() ? 0 : own[0];
  }
  const Index known = std::count_if(examples.begin(), examples.end(), [&](Index e) { return has_label(e); });
  double sum = 0;
  for (const auto& [part, smooth] :
       {std::pair{Slice{0, known}, options_.label_smoothing}, std::pair{Slice{known, texts - known}, 1.0}}) {
    if (part.size == 0) continue;
    const AnyView logits = part_of_rows(l.logits, part), dlogits = part_of_rows(l.dlogits, part),
                  labels = part_of_rows(y, part);
    const CrossEntropyOptions how{.label_smoothing = smooth};
    if (l.there.given())
      late_cross_entropy(logits, labels, how, dlogits, l.weight, l.there, call);
    else
      sum += cross_entropy(logits, labels, how, dlogits, l.weight, session_.ctx).loss;
  }
  return sum;
}

double Learner::learn(const MicroBatch& micro) {
  session_.memory.reset();
  Call call{.ctx = session_.ctx,
            .memory = session_.memory.on(model_.encoder().device()),
            .training = true,
            .seed = micro.seed,
            .step = static_cast<std::uint64_t>(micro.step)};
  TextBatch batch;
  const std::vector<Index> examples = in_order(micro.examples);
  for (const Index e : examples) model_.add_to(batch, rows_[static_cast<std::size_t>(e)]);
  if (options_.token_dropout > 0) drop_tokens(batch, micro.seed);
  const LearntGates* gates = model_.gates();
  if (gates) {
    call.head_gates = gates->drawn(micro.seed, call.memory);
    call.dhead_gates = call.memory.take(
        DType::f32, {call.head_gates.size[0], static_cast<Index>(batch.ids.size()), gates->most()});
    fill_zeros(call.dhead_gates);
  }
  const AnyView logits = model_.forward(batch, call, &saved_);
  const double share = 1 / static_cast<double>(logits.size[0]);
  const Losses losses{.logits = logits,
                      .dlogits = call.memory.take(logits.dtype, {logits.size[0], logits.size[1]}),
                      .there = logits.on_cpu() ? AnyView{}
                               : micro.late    ? micro.late->sum
                                               : no_losses(call),
                      .weight = micro.weight * share};
  double sum = model_.config().multi_label ? loss_of_several(examples, losses, call)
                                           : loss_of_one(examples, losses, call);
  call.loss_weight = micro.weight;
  model_.backward(losses.dlogits, call, saved_);
  if (losses.there.given() && micro.late) micro.late->share = share;
  if (losses.there.given() && !micro.late) sum = read_losses(losses.there, call);
  double price = 0;
  if (gates) price = gates->backward(call.dhead_gates, micro.seed, options_.gate_price, micro.weight);
  return sum * share + call.loss + price;
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
