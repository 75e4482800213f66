#include "headwise/analysis/survey.h"

#include <algorithm>
#include <cmath>

#include "headwise/analysis/explain.h"
#include "headwise/analysis/text_loss.h"

namespace headwise {
namespace {

constexpr Index kGroupTokens = 2048;  // run at once

/// Some utterances side by side, and what is true of them.
struct Group {
  TextBatch batch;
  std::vector<std::vector<Index>> labels;
  std::vector<RolePairs> pairs;  // empty ones for a text of several chunks
};

class Surveyor {
 public:
  Surveyor(const Recognizer& r, const RoleBook& book, Session& session)
      : r_(r), book_(book), session_(session) {
    s_.layers = r.config().encoder.depth, s_.heads = gated_heads(r), s_.mixed = mixes_heads(r);
    for (Index i = 0; i < s_.layers * s_.heads; ++i)
      s_.all.push_back({.layer = i / s_.heads,
                        .head = i % s_.heads,
                        .there = i % s_.heads < gated_heads(r, i / s_.heads),
                        .roles = std::vector<RoleScore>(book.roles().size())});
    has_.resize(book.roles().size());
  }

  void collect(const Corpus& corpus, Index most);
  void look(const std::function<void(double)>& progress);
  Survey finish() &&;

 private:
  void add(const Utterance& u);
  void look_at(const Group& g);
  void add_weights(const Group& g, Taps& taps);
  /// Losses of all utterances with one head off.
  std::vector<double> without(Index head);

  const Recognizer& r_;
  const RoleBook& book_;
  Session& session_;
  Survey s_;
  std::vector<Group> groups_;
  std::vector<double> losses_;
  std::vector<std::vector<bool>> has_;  // by role, by utterance
};

void Surveyor::add(const Utterance& u) {
  std::vector<Index> labels;
  if (!label_numbers(r_, u, labels)) {
    ++s_.unknown;
    return;
  }
  if (groups_.empty() || static_cast<Index>(groups_.back().batch.ids.size()) >= kGroupTokens)
    groups_.emplace_back();
  Group& g = groups_.back();
  const Encoding e = r_.encode(u.text);
  const std::size_t chunks = g.batch.chunks.size();
  r_.add_to(g.batch, e);
  g.labels.push_back(std::move(labels));
  const bool whole = g.batch.chunks.size() == chunks + 1;
  g.pairs.push_back(pairs_of(book_, u.text, e.spans));
  for (std::size_t role = 0; role < has_.size(); ++role)
    has_[role].push_back(!g.pairs.back().of[role].empty());
  if (!whole) g.pairs.back() = {};
  ++s_.utterances;
}

void Surveyor::collect(const Corpus& corpus, Index most) {
  const auto rows = static_cast<Index>(corpus.rows.size()), count = min_of(rows, most);
  for (Index i = 0; i < count; ++i) add(corpus.rows[static_cast<std::size_t>(i * rows / count)]);
}

void Surveyor::add_weights(const Group& g, Taps& taps) {
  if (s_.mixed) to_shares(taps);
  for (const Tap& tap : taps.all) {
    // The text whose only chunk this is; pairs of longer ones would be cut apart.
    const auto& first = g.batch.first_chunk;
    const auto text = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), tap.sequence) -
                                               first.begin() - 1);
    const Index maps = tap.heads / gated_heads(r_, tap.block);  // two of a differential head
    for (Index map = 0; map < tap.heads; ++map) {
      SurveyedHead& head = s_.all[static_cast<std::size_t>(tap.block * s_.heads + map / maps)];
      head.figures.add(sum_rows(tap, map));
      if (!g.pairs[text].of.empty()) add_masses(g.pairs[text], tap, map, head.roles);
    }
  }
}

void Surveyor::look_at(const Group& g) {
  Taps taps;
  session_.memory.reset();
  Call call{.ctx = session_.ctx, .memory = session_.memory};
  if (s_.heads > 0) call.taps = &taps;
  const auto rows = static_cast<Index>(g.batch.ids.size());
  const AnyView slopes = call.memory.take(DType::f64, {s_.layers, rows, s_.heads});
  fill_zeros(slopes);  // layers may have fewer heads
  if (s_.heads > 0) call.dhead_gates = slopes;
  Recognizer::Saved saved;
  const AnyView logits = r_.forward(g.batch, call, &saved);
  const AnyView dlogits = call.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
  for (Index u = 0; u < g.batch.count(); ++u)
    losses_.push_back(text_loss(r_, logits, u, g.labels[static_cast<std::size_t>(u)], dlogits));
  r_.backward(dlogits, call, saved);
  for (Index u = 0; u < g.batch.count(); ++u) {
    const auto chunk = [&](Index i) {
      return g.batch.chunks[static_cast<std::size_t>(g.batch.first_chunk[static_cast<std::size_t>(i)])];
    };
    for (std::size_t n = 0; n < s_.all.size(); ++n) {
      SurveyedHead& head = s_.all[n];
      double sum = 0;
      for (Index t = chunk(u); t < chunk(u + 1); ++t)
        sum += static_cast<const double*>(slopes.data)[(head.layer * rows + t) * s_.heads + head.head];
      head.importance += std::abs(sum);
    }
  }
  add_weights(g, taps);
}

std::vector<double> Surveyor::without(Index off) {
  std::vector<double> losses;
  Tensor gates(DType::f32, {s_.layers, s_.heads});
  for (Index i = 0; i < s_.layers * s_.heads; ++i)
    store_double(gates.view().data, DType::f32, i, i == off ? 0 : 1);
  for (const Group& g : groups_) {
    session_.memory.reset();
    Call call{.ctx = session_.ctx, .memory = session_.memory};
    call.head_gates = gates.view();
    const AnyView logits = r_.forward(g.batch, call, nullptr);
    for (Index u = 0; u < g.batch.count(); ++u)
      losses.push_back(text_loss(r_, logits, u, g.labels[static_cast<std::size_t>(u)], {}));
  }
  return losses;
}

void Surveyor::look(const std::function<void(double)>& progress) {
  const auto count = static_cast<Index>(s_.all.size());
  const auto done = [&](Index n) {
    if (progress) progress(static_cast<double>(n) / static_cast<double>(count + 1));
  };
  for (const Group& g : groups_) look_at(g);
  done(1);
  const auto meanings = std::count_if(book_.roles().begin(), book_.roles().end(),
                                      [](const Role& role) { return role.meaning; });
  const double n = std::max(1.0, static_cast<double>(s_.utterances));
  for (const double loss : losses_) s_.loss += loss / n;
  for (Index i = 0; i < count; ++i) {
    SurveyedHead& head = s_.all[static_cast<std::size_t>(i)];
    if (!head.there) continue;
    std::vector<double> hurt = without(i);
    for (std::size_t u = 0; u < hurt.size(); ++u) hurt[u] -= losses_[u], head.hurt += hurt[u] / n;
    head.importance /= n;
    head.figures = head.figures.mean();
    judge(book_, head.figures, hurt, has_, count * meanings, head.roles);
    head.role = chief_role(book_, head.roles);
    done(i + 2);
  }
}

Survey Surveyor::finish() && { return std::move(s_); }

}  // namespace

Survey survey_heads(const Recognizer& recognizer, const Corpus& corpus, const RoleBook& book,
                    Session& session, const SurveyOptions& options) {
  require(options.utterances > 0, ErrorKind::bad_argument, "survey", "asked for ", options.utterances,
          " utterances; give 1 or more");
  Surveyor s(recognizer, book, session);
  s.collect(corpus, options.utterances);
  s.look(options.progress);
  return std::move(s).finish();
}

}  // namespace headwise
