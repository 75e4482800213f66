#include "headwise/analysis/explain.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

constexpr const char* kOp = "explain";

/// ds / dlogits of s = ln p / (1 - p): a sigmoid's s is its logit; softmax: s = x_l - ln sum of the others'
/// exp.
void slope_of_odds(const Recognizer& r, const Prediction& p, Index label, const AnyView& to) {
  fill_zeros(to);
  store_double(to.data, to.dtype, label, 1);
  if (r.config().multi_label) return;
  double others = 0;
  for (std::size_t l = 0; l < p.probability.size(); ++l)
    if (static_cast<Index>(l) != label) others += static_cast<double>(p.probability[l]);
  for (std::size_t l = 0; l < p.probability.size(); ++l)
    if (static_cast<Index>(l) != label && others > 0)
      store_double(to.data, to.dtype, static_cast<Index>(l), -static_cast<double>(p.probability[l]) / others);
}

/// The rows the first block reads, as its norm or its attention kept them.
AnyView first_rows(const Recognizer& r, const Recognizer::Saved& saved) {
  if (r.config().encoder.depth == 0) return saved.rows;
  const Block::Saved& block = saved.encoder.stack.blocks[0];
  return r.config().encoder.norm_first ? block.norms[0].x : block.self.args.x;
}

/// Where row `row` of chunk rows stands among the text's tokens; chunks overlap and have [CLS] and [SEP] of
/// their own.
std::vector<std::size_t> token_of_row(const TextBatch& batch, const Encoding& whole) {
  std::vector<std::size_t> token(batch.ids.size(), 0);
  for (std::size_t c = 0; c + 1 < batch.chunks.size(); ++c) {
    const auto first = static_cast<std::size_t>(batch.chunks[c]),
               end = static_cast<std::size_t>(batch.chunks[c + 1]);
    if (end - first < 2) continue;
    token[end - 1] = whole.ids.size() - 1;
    std::size_t at = 1;
    if (end - first > 2)
      while (at < whole.spans.size() && whole.spans[at] != batch.spans[first + 1]) ++at;
    for (std::size_t row = first + 1; row + 1 < end; ++row)
      token[row] = std::min(at + row - first - 1, whole.ids.size() - 1);
  }
  return token;
}

}  // namespace

Index gated_heads(const Recognizer& r) {
  if (r.config().encoder.depth == 0) return 0;
  const MultiHead* attention = r.encoder().stack().block(0).self_attention();
  return attention ? attention->head_count() : 0;
}

bool has_weights(const Recognizer& r) {
  if (r.config().encoder.depth == 0) return false;
  const MultiHead* attention = r.encoder().stack().block(0).self_attention();
  return attention && !attention->head().spec().mixes();
}

Explanation explain_text(const Recognizer& r, std::string_view text, Session& session,
                         const ExplainOptions& options) {
  const auto labels = static_cast<Index>(r.config().labels.size());
  require(options.label >= -1 && options.label < labels, ErrorKind::bad_argument, kOp, "label ",
          options.label, " is asked but the recogniser has ", labels, "; give 0 to ", labels - 1,
          ", or -1 for the best");
  Explanation e;
  e.layers = r.config().encoder.depth, e.heads = gated_heads(r);
  const Encoding whole = r.encode(text);
  TextBatch batch;
  r.add_to(batch, whole);
  const auto rows = static_cast<Index>(batch.ids.size());
  Taps taps;
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  if (options.weights && has_weights(r)) call.taps = &taps;
  AnyView slopes;
  if (e.heads > 0) call.dhead_gates = slopes = call.memory.take(DType::f64, {e.layers, rows, e.heads});
  Recognizer::Saved saved;
  const AnyView logits = r.forward(batch, call, &saved);
  e.prediction = r.judge(logits, 0);
  const std::vector<float>& p = e.prediction.probability;
  e.label = options.label >= 0 ? options.label : std::max_element(p.begin(), p.end()) - p.begin();

  const AnyView dlogits = call.memory.take(logits.dtype, {1, labels});
  slope_of_odds(r, e.prediction, e.label, dlogits);
  const AnyView dx = r.backward(dlogits, call, saved);
  for (Index i = 0; i < e.layers; ++i)
    for (Index h = 0; h < e.heads; ++h) {
      double sum = 0;
      for (Index t = 0; t < rows; ++t)
        sum += static_cast<const double*>(slopes.data)[(i * rows + t) * e.heads + h];
      e.head_importance.push_back(sum);
    }

  for (std::size_t t = 0; t < whole.ids.size(); ++t)
    e.tokens.push_back({.span = whole.spans[t], .piece = r.tokenizer().vocabulary().piece(whole.ids[t])});
  const AnyView x = first_rows(r, saved);
  const std::vector<std::size_t> token = token_of_row(batch, whole);
  for (Index t = 0; t < rows; ++t)
    for (Index c = 0; c < x.size[1]; ++c)
      e.tokens[token[static_cast<std::size_t>(t)]].importance +=
          load_double(x.data, x.dtype, t * x.step[0] + c * x.step[1]) *
          load_double(dx.data, dx.dtype, t * dx.step[0] + c * dx.step[1]);
  e.taps = std::move(taps.all);
  return e;
}

}  // namespace headwise
