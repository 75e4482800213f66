#include "headwise/lab/survey/head_survey.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>

#include "headwise/base/error.h"
#include "headwise/base/random.h"
#include "headwise/lab/model/head_plan.h"
#include "headwise/lab/survey/head_map.h"
#include "headwise/lab/survey/walk.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";
constexpr Index kChanceHeads = 4;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Heads whose rows are drawn evenly from all weights there can be.
HeadSums chance_of(const SurveySubject& model, const ReadTexts& texts, std::uint64_t seed) {
  HeadSums all;
  std::uint32_t count = 0;
  const auto weights_of = [&](Index n, Index keys) {
    std::vector<float> w(at(n * keys), 0);
    for (Index i = 0; i < n; ++i) {
      const Index end = model.causal() ? i + 1 : keys;
      double sum = 0;
      for (Index j = 0; j < end; ++j) {
        const std::uint32_t u = Philox::block(seed, {count++, 0, 3, 0})[0];
        sum += w[at(i * keys + j)] = static_cast<float>(-std::log((u + 0.5) / 4294967296.0));
      }
      for (Index j = 0; j < end; ++j) w[at(i * keys + j)] = static_cast<float>(w[at(i * keys + j)] / sum);
    }
    return w;
  };
  for (Index head = 0; head < kChanceHeads; ++head) {
    for (std::size_t i = 0; i < texts.texts.size(); ++i) {
      MapOfText m{texts.texts[i], nullptr};
      if (model.cross()) m.keys = &texts.texts[i].source;
      const std::vector<float> w = weights_of(m.rows(), m.wide());
      m.weights = w.data(), m.causal = model.causal(), m.rarest = texts.rarest[i];
      const std::vector<double> ones(at(m.wide()), 1);
      m.value_norm = &ones;
      add_figures(m, all);
    }
    for (const SurveyTokens& t : texts.repeats) {
      const std::vector<float> w = weights_of(std::ssize(t), std::ssize(t));
      MapOfText m{t, w.data()};
      m.causal = model.causal();
      add_repeats(m, all);
    }
  }
  all.finish();
  return all;
}

/// The largest figure among the shuffled heads of a layer. Their matrices are shuffled together, so any of
/// them may be what the head would be by luck.
FigureValue most_shuffled(const HeadSurvey& s, Index layer, std::size_t figure) {
  FigureValue most;
  for (const SurveyedModelHead& h : s.heads)
    if (const FigureValue& v = h.figures[figure]; h.layer == layer && v.shuffled >= most.shuffled) most = v;
  return most;
}

void name_roles(const HeadSurvey& s, const HeadSurveyOptions& o, SurveyedModelHead& h) {
  constexpr double kAbove = 0.1;
  for (std::size_t f = 0; f < kTextFigureCount; ++f) {
    const FigureValue &v = h.figures[f], &chance = s.chance[f];
    if (kTextFigures[f].role_from <= 0 || v.value < kTextFigures[f].role_from) continue;
    const FigureValue luck = most_shuffled(s, h.layer, f);
    const double low = v.value - v.half;
    const bool above = low > luck.shuffled + luck.shuffled_half && v.value >= luck.shuffled + kAbove &&
                       low > chance.value + chance.half && v.value >= std::min(chance.value + kAbove, 0.99);
    std::string name(kTextFigures[f].name);
    if (name == "positional") name += text(h.offset > 0 ? " +" : " ", h.offset);
    if (above) h.roles.push_back(name);
  }
  for (std::size_t r = 0; r < s.relations.size(); ++r) {
    const RelationName& n = s.relations[r];
    const RelationValue& v = h.relations[r];
    if (n.count < o.least) continue;
    const double error = 1.96 * std::sqrt(0.25 / static_cast<double>(n.count));
    const auto above = [&](double x, double shuffled) {
      return x >= n.baseline + kAbove && x >= shuffled + std::max(kAbove, error);
    };
    if (above(v.forth, v.shuffled_forth)) h.roles.push_back(n.name + " >");
    if (above(v.back, v.shuffled_back)) h.roles.push_back(n.name + " <");
  }
}

void place_heads(const Walk& walk, const HeadSurveyOptions& o, HeadSurvey& s) {
  if (walk.apart_rows == 0) return;
  s.apart = walk.apart;
  SmallMatrix root = s.apart;
  for (double& x : s.apart.values) x /= static_cast<double>(walk.apart_rows);
  for (std::size_t i = 0; i < root.values.size(); ++i) root.values[i] = std::sqrt(s.apart.values[i]);
  const std::vector<Index> cluster = clusters_of(root, o.clusters);
  const auto places = places_of(root);
  for (std::size_t h = 0; h < s.heads.size(); ++h)
    s.heads[h].cluster = cluster[h], s.heads[h].x = places[h].first, s.heads[h].y = places[h].second;
}

/// Figures of the matrices of all heads, layer by layer.
std::vector<std::vector<double>> all_matrix_figures(SurveySubject& model, const SmallMatrix& vocabulary) {
  std::vector<HeadName> names;
  for (Index layer = 0; layer < model.layers(); ++layer)
    for (Index h = 0; h < model.heads(layer); ++h) names.push_back({layer, h});
  std::vector<std::vector<double>> all(names.size());
  model.pool().parallel_for(static_cast<Index>(names.size()), [&](Index i, int) {
    all[at(i)] = matrix_figures(model.matrices(names[at(i)].layer, names[at(i)].head), vocabulary);
  });
  return all;
}

/// What both walks and chance gave, and figures of matrices; of rows alone, only the first walk.
struct Findings {
  Walk own, other;
  std::vector<std::vector<double>> matrices, other_matrices;
  HeadSums chance;
};

FigureValue value_of(const Mean& own, const Mean& other, bool alone, bool taken) {
  if (!taken) return {kNone, 0, kNone, 0};
  return {own.value(), own.half(), alone ? kNone : other.value(), alone ? 0 : other.half()};
}

void fill_heads(SurveySubject& model, const Findings& f, bool alone, HeadSurvey& s) {
  constexpr std::size_t slopes = figure_at("gradient");  // and those behind it: not of every model
  for (std::size_t k = 0; k < kTextFigureCount; ++k)
    s.chance.push_back({alone || k >= slopes || (s.cross && f.chance.figures[k].n == 0)
                            ? kNone
                            : f.chance.figures[k].value(),
                        f.chance.figures[k].half(), 0, 0});
  for (Index layer = 0, n = 0; layer < s.layers; ++layer)
    for (Index h = 0; h < model.heads(layer); ++h, ++n) {
      const HeadSums& sums = f.own.heads[at(n)];
      SurveyedModelHead head{.layer = layer, .head = h, .offset = sums.best_offset()};
      for (std::size_t k = 0; k < kTextFigureCount; ++k)
        head.figures.push_back(value_of(sums.figures[k], alone ? Mean{} : f.other.heads[at(n)].figures[k],
                                        alone, (!alone && !s.cross && k < slopes) || sums.figures[k].n > 0));
      for (std::size_t k = 0; k < kMatrixFigureCount; ++k)
        head.figures.push_back(
            {alone ? kNone : f.matrices[at(n)][k], 0, alone ? kNone : f.other_matrices[at(n)][k], 0});
      for (std::size_t r = 0; r < s.relations.size(); ++r) {
        const double count = static_cast<double>(max_of(1, s.relations[r].count));
        const Hits a = f.own.relations[at(n)][r], b = alone ? Hits{} : f.other.relations[at(n)][r];
        head.relations.push_back({static_cast<double>(a.forth) / count, static_cast<double>(a.back) / count,
                                  static_cast<double>(b.forth) / count, static_cast<double>(b.back) / count});
      }
      s.heads.push_back(std::move(head));
    }
}

void fill_depth(const Findings& f, bool alone, HeadSurvey& s) {
  for (std::size_t k = 0; k < kDepthFigureCount; ++k) {
    s.depth.emplace_back();
    for (std::size_t l = 0; l < at(s.layers); ++l) {
      const Mean a = f.own.depth.figures[k][l], b = alone ? Mean{} : f.other.depth.figures[k][l];
      s.depth.back().push_back({a.n ? a.value() : kNone, a.half(), b.n ? b.value() : kNone, b.half()});
    }
  }
}

}  // namespace

std::vector<double> HeadSurvey::apart_in_layer() const {
  std::vector<double> sum(at(layers), 0);
  std::vector<Index> pairs(at(layers), 0);
  for (std::size_t a = 0; apart.rows > 0 && a < heads.size(); ++a)
    for (std::size_t b = a + 1; b < heads.size(); ++b)
      if (heads[a].layer == heads[b].layer)
        sum[at(heads[a].layer)] += apart.at(static_cast<Index>(a), static_cast<Index>(b)),
            ++pairs[at(heads[a].layer)];
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] /= static_cast<double>(max_of(1, pairs[i]));
  return sum;
}

HeadSurvey survey_subjects(SurveySubject& model, SurveySubject* shuffled,
                           const std::vector<std::string>& texts, const HeadSurveyOptions& o) {
  require(o.texts > 0 && o.shuffled > 0 && o.tokens >= 8, ErrorKind::bad_argument, kOp, "asked for ", o.texts,
          " texts of ", o.tokens, " tokens; give 1 text and 8 tokens or more");
  require(!texts.empty(), ErrorKind::bad_argument, kOp, "there are no texts; give some");
  require(!o.rows_only || o.related.empty(), ErrorKind::bad_argument, kOp,
          "relations of words are no figures of rows; leave out trees and pairs, or take all figures");
  require(
      !model.cross() || o.related.empty(), ErrorKind::unsupported, kOp,
      "words of a tree or pair are of one text, and cross heads look at another; leave out trees and pairs");
  const bool alone = o.rows_only || shuffled == nullptr;
  const ReadTexts read = read_all(model, texts, o);
  const auto part = [&](double from, double size) -> std::function<void(double)> {
    if (!o.progress) return {};
    return [&o, from, size](double share) { o.progress(from + size * share); };
  };
  Findings f;
  f.own = walk_model(model, read, o, {!alone && o.apart > 0, part(0, alone ? 1 : 0.5)});
  if (!alone) {
    const ReadTexts fewer = sampled(read, o.shuffled);
    f.other = walk_model(*shuffled, fewer, o, {false, part(0.5, 0.5)});
    f.chance = chance_of(model, fewer, o.seed);
    const SmallMatrix vocabulary = model.vocabulary_product();
    f.matrices = all_matrix_figures(model, vocabulary);
    f.other_matrices = all_matrix_figures(*shuffled, vocabulary);
  }
  HeadSurvey s{.layers = model.layers(),
               .texts = static_cast<Index>(read.texts.size()),
               .causal = model.causal(),
               .cross = model.cross()};
  for (const SurveyTokens& t : read.texts)
    s.tokens += static_cast<Index>(t.size()), s.shortened += t.shortened;
  s.relations = read.names;
  fill_heads(model, f, alone, s);
  fill_depth(f, alone, s);
  s.shown = f.own.shown;
  for (SurveyedModelHead& h : s.heads)
    if (!alone) name_roles(s, o, h);
  place_heads(f.own, o, s);
  return s;
}

HeadSurvey survey_model(const std::string& path, const std::vector<std::string>& texts, int threads,
                        const HeadSurveyOptions& o) {
  std::future<std::unique_ptr<SurveySubject>> other;  // read while the model is
  if (!o.rows_only) other = std::async(std::launch::async, open_subject, path, threads, true, o.seed, o.part);
  const auto model = open_subject(path, threads, false, 0, o.part);
  const auto shuffled = other.valid() ? other.get() : nullptr;
  return survey_subjects(*model, shuffled.get(), texts, o);
}

}  // namespace headwise
