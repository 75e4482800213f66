#include "headwise/translation/translator.h"

#include <algorithm>
#include <optional>

namespace headwise {
namespace {

using Tokens = std::vector<std::int32_t>;

TransformerConfig transformer_of(const TranslatorConfig& c, Index vocabulary) {
  TransformerConfig t{.kind = ModelKind::encoder_decoder, .vocabulary = vocabulary + 2};
  t.heads = c.heads, t.cross_heads = c.cross_heads;
  t.model_dim = c.model_dim, t.feed_dim = c.feed_dim;
  t.depth = c.depth, t.source_depth = c.source_depth;
  t.max_tokens = c.max_tokens, t.dropout = c.dropout;
  t.scaled_embedding = true, t.positions = Positions::sinusoidal;
  return t;
}

/// Sequences one after the other, without padding.
struct Ragged {
  Tokens ids;
  std::vector<Index> offsets{0};

  void add(std::optional<std::int32_t> before, std::span<const std::int32_t> tokens,
           std::optional<std::int32_t> after) {
    if (before) ids.push_back(*before);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    if (after) ids.push_back(*after);
    offsets.push_back(static_cast<Index>(ids.size()));
  }
  AnyView view() { return AnyView::packed(ids.data(), DType::i32, {static_cast<Index>(ids.size())}); }
  Sequences sequences() {
    return {.offsets = AnyView::packed(offsets.data(), DType::i64, {static_cast<Index>(offsets.size())})};
  }
};

}  // namespace

struct Translator::Batch {
  Ragged source, inputs, labels;
};

Translator::Translator(Bpe bpe, const TranslatorConfig& config, std::uint64_t seed)
    : Translator(std::move(bpe), config, ParamSet(DType::f32, seed)) {}

Translator::Translator(Bpe bpe, const TranslatorConfig& config, ParamSet params)
    : bpe_(std::move(bpe)), config_(config), params_(std::make_unique<ParamSet>(std::move(params))) {
  require(config.max_tokens >= 2, ErrorKind::bad_argument, "translator", "max_tokens is ", config.max_tokens,
          "; a sentence needs a token and its end: give 2 or more");
  model_ = std::make_unique<Transformer>(*params_, transformer_of(config, bpe_.vocabulary()));
}

bool Translator::fits(const PairTokens& p) const {
  return static_cast<Index>(std::max(p.source.size(), p.target.size())) < config_.max_tokens;
}

PairTokens Translator::encode(std::string_view source, std::string_view target) const {
  PairTokens p{bpe_.encode(source), bpe_.encode(target)};
  require(fits(p), ErrorKind::bad_argument, "translator", "a pair has ", p.source.size(), " and ",
          p.target.size(), " tokens but the model reads ", config_.max_tokens - 1,
          "; give shorter sentences");
  return p;
}

AnyView Translator::forward(Batch& b, Call& call, Transformer::Saved* saved) const {
  return model_->forward({.ids = b.inputs.view(),
                          .source_ids = b.source.view(),
                          .sequences = b.inputs.sequences(),
                          .source_sequences = b.source.sequences()},
                         call, saved);
}

double Translator::learn(std::span<const PairTokens* const> pairs, const MicroBatch& micro, double smoothing,
                         Session& session, const Before& before) const {
  Batch batch;
  for (const PairTokens* p : pairs) {
    batch.source.add({}, p->source, end());
    batch.inputs.add(begin(), p->target, {});
    batch.labels.add({}, p->target, end());
  }
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.training = true, call.seed = micro.seed, call.step = static_cast<std::uint64_t>(micro.step);
  if (before) before(call);
  Transformer::Saved saved;
  const AnyView logits = forward(batch, call, &saved);
  const AnyView dlogits = session.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
  const double share = micro.weight / static_cast<double>(logits.size[0]);
  const LossSum sum =
      cross_entropy(logits, batch.labels.view(), {.label_smoothing = smoothing}, dlogits, share, session.ctx);
  model_->backward(dlogits, call, saved);
  return sum.mean();
}

LossSum Translator::judge(std::span<const PairTokens* const> pairs, Session& session) const {
  Batch batch;
  for (const PairTokens* p : pairs) {
    batch.source.add({}, p->source, end());
    batch.inputs.add(begin(), p->target, {});
    batch.labels.add({}, p->target, end());
  }
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  return cross_entropy(forward(batch, call, nullptr), batch.labels.view(), {}, session.ctx);
}

std::vector<Tokens> Translator::translate(std::span<const Tokens> sources, Session& session,
                                          const Before& before) const {
  std::vector<Tokens> found(sources.size());
  const auto read = [&](std::size_t i) {  // as much of a source as the model reads, before its end
    return std::span(sources[i])
        .first(std::min(sources[i].size(), static_cast<std::size_t>(config_.max_tokens - 1)));
  };
  std::vector<std::size_t> open(sources.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  for (Index step = 0; step + 1 < config_.max_tokens && !open.empty(); ++step) {
    Batch batch;
    for (const std::size_t i : open)
      batch.source.add({}, read(i), end()), batch.inputs.add(begin(), found[i], {});
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory};
    if (before) before(call);
    const AnyView logits = forward(batch, call, nullptr);
    std::vector<std::size_t> still;
    for (std::size_t n = 0; n < open.size(); ++n) {
      const float* row =
          static_cast<const float*>(logits.data) + (batch.inputs.offsets[n + 1] - 1) * logits.step[0];
      const auto token = static_cast<std::int32_t>(std::max_element(row, row + logits.size[1]) - row);
      if (token >= begin()) continue;
      found[open[n]].push_back(token);
      if (found[open[n]].size() < 2 * sources[open[n]].size() + 5) still.push_back(open[n]);
    }
    open = std::move(still);
  }
  return found;
}

std::vector<std::vector<float>> Translator::next_scores(std::span<const PairTokens> pairs, Session& session,
                                                        const Before& before) const {
  Batch batch;
  for (const PairTokens& p : pairs)
    batch.source.add({}, p.source, end()), batch.inputs.add(begin(), p.target, {});
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  if (before) before(call);
  const AnyView logits = forward(batch, call, nullptr);
  std::vector<std::vector<float>> all;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const float* row =
        static_cast<const float*>(logits.data) + (batch.inputs.offsets[i + 1] - 1) * logits.step[0];
    all.emplace_back(row, row + logits.size[1]);
  }
  return all;
}

std::vector<Tap> Translator::cross_weights(std::span<const PairTokens* const> pairs, Session& session) const {
  Batch batch;
  for (const PairTokens* p : pairs) {
    require(fits(*p), ErrorKind::bad_argument, "translator", "a pair has ", p->source.size(), " and ",
            p->target.size(), " tokens but the model reads ", config_.max_tokens - 1,
            "; give shorter sentences");
    batch.source.add({}, p->source, end());
    batch.inputs.add(begin(), p->target, {});
  }
  session.memory.reset();
  Taps taps;
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.taps = &taps;
  forward(batch, call, nullptr);
  return std::move(taps.all);
}

}  // namespace headwise
