#include <algorithm>
#include <cmath>

#include "headwise/intent/recognizer/recognizer.h"

namespace headwise {
namespace {

constexpr const char* kOp = "recognizer";
constexpr Index kGroupTokens = 1 << 13;  // read at once: memory stays small, bits are the same

double number_at(const AnyView& v, Index row, Index column) {
  return load_double(v.data, v.dtype, row * v.step[0] + column * v.step[1]);
}

/// ln softmax of a row of logits, without the last class.
std::vector<double> label_scores(const AnyView& logits, Index row) {
  const Index classes = logits.size[1];
  std::vector<double> x;
  for (Index l = 0; l < classes; ++l) x.push_back(number_at(logits, row, l));
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += std::exp(v - most);
  const double whole = most + std::log(sum);
  x.pop_back();
  for (double& v : x) v -= whole;
  require(std::isfinite(whole), ErrorKind::bad_argument, kOp,
          "the scores of this text are no numbers: weights of this size overflow; train with a smaller rate");
  return x;
}

/// Tokens [first, last) of a text as a text of their own.
Encoding part_of(const Encoding& whole, const TokenRange& range) {
  Encoding part;
  const auto put = [&](std::size_t i) {
    part.ids.push_back(whole.ids[i]);
    part.spans.push_back(whole.spans[i]);
  };
  put(0);
  for (Index t = range.first; t < range.last; ++t) put(static_cast<std::size_t>(t) + 1);
  put(whole.ids.size() - 1);
  return part;
}

/// Where a span begins and ends in the text.
TextSpan bytes_of(const Encoding& whole, const TokenRange& range) {
  if (range.first >= range.last) return {};
  return {whole.spans[static_cast<std::size_t>(range.first) + 1].begin,
          whole.spans[static_cast<std::size_t>(range.last)].end};
}

}  // namespace

std::vector<TextReading> Recognizer::read_cuts(std::span<const std::string> texts, Session& session) const {
  require(config_.cuts.on, ErrorKind::bad_argument, kOp, "this recogniser does not cut texts; use predict");
  const std::string& inside = tokenizer_.options().inside;
  std::vector<TextReading> all;
  std::vector<Encoding> encodings;
  TextBatch group;
  std::size_t first = 0;  // of the group
  const auto run_texts = [&] {
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory};
    AnyView tags;
    const AnyView logits = forward(group, call, nullptr, &tags);
    for (Index b = 0; b < group.count(); ++b) {
      const Encoding& whole = encodings[first + static_cast<std::size_t>(b)];
      std::vector<TokenTags> tokens;
      const auto count = static_cast<Index>(whole.ids.size()) - 2;
      // Rows that speak for a text are [CLS], its tokens and [SEP].
      for (Index t = 0; t < count; ++t) {
        const Index row =
            group.rows[static_cast<std::size_t>(group.texts[static_cast<std::size_t>(b)] + 1 + t)];
        const std::string& piece = tokenizer_.vocabulary().piece(whole.ids[static_cast<std::size_t>(t) + 1]);
        tokens.push_back({number_at(tags, row, 0), number_at(tags, row, 1), !piece.starts_with(inside)});
      }
      TextReading reading{.cuts = plan_cuts(tokens, config_.cuts), .bytes = {}};
      for (const TokenRange& range : reading.cuts.spans) reading.bytes.push_back(bytes_of(whole, range));
      reading.cuts.scores.push_back(label_scores(logits, b));  // the first span is the whole text
      all.push_back(std::move(reading));
    }
    first += static_cast<std::size_t>(group.count());
    group = {};
  };
  for (const std::string& text : texts) {
    encodings.push_back(encode(text));
    add_to(group, encodings.back());
    if (static_cast<Index>(group.ids.size()) >= kGroupTokens) run_texts();
  }
  if (group.count() > 0) run_texts();

  std::vector<std::size_t> owner;  // of each span of the group
  const auto run_spans = [&] {
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory};
    const AnyView logits = forward(group, call, nullptr);
    for (Index b = 0; b < group.count(); ++b)
      all[owner[static_cast<std::size_t>(b)]].cuts.scores.push_back(label_scores(logits, b));
    owner.clear();
    group = {};
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t s = 1; s < all[i].cuts.spans.size(); ++s) {
      add_to(group, part_of(encodings[i], all[i].cuts.spans[s]));
      owner.push_back(i);
      if (static_cast<Index>(group.ids.size()) >= kGroupTokens) run_spans();
    }
  if (group.count() > 0) run_spans();
  return all;
}

Prediction Recognizer::answer(const TextReading& reading) const {
  Prediction p;
  p.probability.assign(config_.labels.size(), 0);
  for (const ChosenSpan& c : choose_cuts(reading.cuts, config_.cuts.shift, config_.cuts.weight)) {
    const std::vector<double>& scores = reading.cuts.scores[c.span];
    for (std::size_t l = 0; l < scores.size(); ++l)
      p.probability[l] = std::max(p.probability[l], static_cast<float>(std::exp(scores[l])));
    p.spans.push_back({c.label, reading.bytes[c.span],
                       static_cast<float>(std::exp(scores[static_cast<std::size_t>(c.label)]))});
  }
  decide(config_, p);
  return p;
}

}  // namespace headwise
