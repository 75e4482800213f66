// LabModel::run_slopes: the loss of one text, and its gradient in what every head gives.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "headwise/analysis/text_loss.h"
#include "headwise/lab/model/lab_model.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Labels that a recogniser gives a text: those above a half, or the likeliest.
std::vector<Index> own_answer(const Recognizer& r, const AnyView& logits) {
  const std::vector<float> p = r.judge(logits, 0).probability;
  std::vector<Index> labels;
  for (std::size_t i = 0; r.config().multi_label && i < p.size(); ++i)
    if (p[i] > 0.5f) labels.push_back(static_cast<Index>(i));
  if (!r.config().multi_label) labels.push_back(std::max_element(p.begin(), p.end()) - p.begin());
  return labels;
}

/// A text as an encoder reads it.
struct OneText {
  std::vector<TokenId> ids;
  Index ends[2] = {0, 0};
  explicit OneText(const Encoding& e) : ids(e.ids) { ends[1] = static_cast<Index>(ids.size()); }
  TransformerInput input() {
    return {.ids = AnyView::packed(ids.data(), DType::i32, {ends[1]}),
            .sequences = {.offsets = AnyView::packed(ends, DType::i64, {2})}};
  }
};

std::vector<double> pooled(const TextEncoder& e, const AnyView& rows) {
  const Index wide = rows.size[1], count = e.pools_mean() ? rows.size[0] : 1;
  std::vector<double> sum(at(wide), 0);
  for (Index r = 0; r < count; ++r)
    for (Index c = 0; c < wide; ++c)
      sum[at(c)] += static_cast<double>(static_cast<const float*>(rows.data)[r * wide + c]) /
                    static_cast<double>(count);
  return sum;
}

double length_of(const std::vector<double>& x) {
  double square = 0;
  for (const double v : x) square += v * v;
  return std::max(std::sqrt(square), 1e-12);
}

/// d(1 - cosine(u, w)) / drows, where u is what the rows pool to.
void cosine_slope(const TextEncoder& e, const AnyView& rows, const std::vector<double>& w,
                  const AnyView& slope) {
  const std::vector<double> u = pooled(e, rows);
  const double a = length_of(u), b = length_of(w);
  double cosine = 0;
  for (std::size_t c = 0; c < u.size(); ++c) cosine += u[c] / a * w[c] / b;
  const Index wide = rows.size[1], count = e.pools_mean() ? rows.size[0] : 1;
  auto* to = static_cast<float*>(slope.data);
  std::fill_n(to, rows.size[0] * wide, 0.0f);
  for (Index r = 0; r < count; ++r)
    for (Index c = 0; c < wide; ++c)
      to[r * wide + c] =
          static_cast<float>((cosine * u[at(c)] / a - w[at(c)] / b) / a / static_cast<double>(count));
}

}  // namespace

void LabModel::run_slopes(const Encoding& text, const Encoding& other, Session& session,
                          const std::function<void(const SeenText&)>& look) const {
  std::vector<double> wanted;
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.packed = packed_.get();
  session.memory.reset();
  if (encoder_) {
    OneText one(other);
    wanted = pooled(*encoder_, encoder_->model().forward(one.input(), call, nullptr));
    session.memory.reset();
  }
  Taps taps;
  taps.rows = taps.slopes = true;
  call.taps = &taps;
  OneText one(text);
  if (encoder_) {
    Transformer::Saved saved;
    const AnyView rows = encoder_->model().forward(one.input(), call, &saved);
    const AnyView slope = call.memory.take(rows.dtype, {rows.size[0], rows.size[1]});
    cosine_slope(*encoder_, rows, wanted, slope);
    encoder_->model().backward(slope, call, saved);
  } else {
    TextBatch batch;
    recognizer_->add_to(batch, text);
    Recognizer::Saved saved;
    const AnyView logits = recognizer_->forward(batch, call, &saved);
    const AnyView slope = call.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
    text_loss(*recognizer_, logits, 0, own_answer(*recognizer_, logits), slope);
    recognizer_->backward(slope, call, saved);
  }
  look({text, taps.all});
}

}  // namespace headwise
