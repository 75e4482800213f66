#include "headwise/train/next_token.h"

#include <algorithm>
#include <numeric>

namespace headwise {
namespace {

constexpr Index kIgnore = -100;

}  // namespace

NextToken::NextToken(const Transformer& model, Index width, ReadExample read, Context& ctx,
                     const NextTokenOptions& options)
    : model_(model), width_(width), read_(std::move(read)), ctx_(ctx), options_(options) {
  require(width >= 1, ErrorKind::bad_argument, "next token", "the width is ", width, "; give 1 or more");
  require(model.config().kind == ModelKind::decoder, ErrorKind::bad_argument, "next token",
          "the model is an ", name_of(model.config().kind), "; only a decoder has a next token");
}

ConstView NextToken::labels() const {
  return ConstView::packed(labels_.data(), DType::i32, {static_cast<Index>(labels_.size())});
}

AnyView NextToken::forward(std::span<const Index> examples, Call& call, Transformer::Saved* saved) {
  const auto w = static_cast<std::size_t>(width_);
  inputs_.resize(examples.size() * w);
  labels_.resize(examples.size() * w);
  for (std::size_t i = 0; i < examples.size(); ++i)
    read_(examples[i], std::span(inputs_).subspan(i * w, w), std::span(labels_).subspan(i * w, w));
  const auto batch = static_cast<Index>(examples.size());
  return model_.forward({.ids = AnyView::packed(inputs_.data(), DType::i32, {batch * width_}),
                         .sequences = {.batch = batch, .tokens = width_}},
                        call, saved);
}

double NextToken::learn(const MicroBatch& micro) {
  memory_.reset();
  Call call{.ctx = ctx_,
            .memory = memory_.on(model_.device()),
            .training = true,
            .seed = micro.seed,
            .step = static_cast<std::uint64_t>(micro.step)};
  const AnyView logits = forward(micro.examples, call, &saved_);
  const Index counted = counted_labels(labels(), kIgnore);
  const double share = counted ? 1.0 / static_cast<double>(counted) : 0.0;
  const AnyView dlogits = call.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
  const CrossEntropyOptions o{.label_smoothing = options_.label_smoothing, .ignore = kIgnore};
  call.loss_weight = micro.weight;
  if (logits.on_cpu()) {
    const LossSum sum = cross_entropy(logits, labels(), o, dlogits, micro.weight * share, ctx_);
    model_.backward(dlogits, call, saved_);
    return sum.mean() + call.loss;
  }
  const AnyView sum = micro.late ? micro.late->sum : no_losses(call);
  late_cross_entropy(logits, labels(), o, dlogits, micro.weight * share, sum, call);
  model_.backward(dlogits, call, saved_);
  if (micro.late) micro.late->share = share;
  return call.loss + (micro.late ? 0 : share * read_losses(sum, call));
}

double NextToken::judge(Index first, Index count, Index rows) {
  LossSum total;
  for (Index at = first; at < first + count; at += rows) {
    std::vector<Index> examples(static_cast<std::size_t>(min_of(rows, first + count - at)));
    std::iota(examples.begin(), examples.end(), at);
    memory_.reset();
    Call call = call_there();
    call.head_budget = options_.head_budget;
    const AnyView logits = forward(examples, call, nullptr);
    if (logits.on_cpu()) {
      const LossSum sum = cross_entropy(logits, labels(), {.ignore = kIgnore}, ctx_);
      total.loss += sum.loss, total.counted += sum.counted;
    } else {
      const AnyView sum = no_losses(call);
      total.counted += late_cross_entropy(logits, labels(), {.ignore = kIgnore}, {}, 1, sum, call);
      total.loss += read_losses(sum, call);
    }
  }
  return total.mean();
}

double NextToken::accuracy(Index first, Index count, Index rows) {
  Index right = 0, counted = 0;
  for (Index at = first; at < first + count; at += rows) {
    std::vector<Index> examples(static_cast<std::size_t>(min_of(rows, first + count - at)));
    std::iota(examples.begin(), examples.end(), at);
    memory_.reset();
    Call call = call_there();
    call.head_budget = options_.head_budget;
    const AnyView logits = to(forward(examples, call, nullptr), memory_, ctx_);
    for (Index row = 0; row < logits.size[0]; ++row) {
      const Index label = labels_[static_cast<std::size_t>(row)];
      if (label == kIgnore) continue;
      ++counted;
      Index best = 0;
      const auto at_column = [&](Index c) {
        return load_double(logits.data, logits.dtype, row * logits.step[0] + c * logits.step[1]);
      };
      for (Index c = 1; c < logits.size[1]; ++c)
        if (at_column(c) > at_column(best)) best = c;
      right += best == label;
    }
  }
  return counted ? static_cast<double>(right) / static_cast<double>(counted) : 0.0;
}

}  // namespace headwise
