#include "headwise/lab/survey/head_survey.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "headwise/base/error.h"
#include "headwise/base/random.h"
#include "headwise/lab/depth/collapse.h"
#include "headwise/lab/model/head_plan.h"
#include "headwise/lab/survey/head_map.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";
constexpr Index kChanceHeads = 4;
constexpr std::size_t kGroupTokens = 256;  // of one forward, or one text
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Hits of one relation by one head, in both directions.
struct Hits {
  Index forth = 0, back = 0;
};

/// What one walk over all texts gives for one model.
struct Walk {
  std::vector<HeadSums> heads;
  DepthSums depth;
  ShownPath shown;
  std::vector<std::vector<Hits>> relations;  // [heads][relations]
  SmallMatrix apart;
  Index apart_rows = 0;
};

/// Texts as the model reads them, and what is true of them.
struct ReadTexts {
  std::vector<SurveyTokens> texts, repeats, related;
  std::vector<std::string> words;               // by text
  std::vector<Index> rarest;                    // by text
  std::vector<std::vector<Index>> word_of;      // by related text: the word of each token, -1: none
  std::vector<std::vector<Index>> relation_of;  // by related text and relation: its number
  std::vector<RelationName> names;
};

/// The token each text uses that the corpus has least, among the rarer half of all or beyond the 500 most
/// frequent.
std::vector<Index> rarest_of(const std::vector<SurveyTokens>& texts) {
  std::map<TokenId, Index> count;
  for (const SurveyTokens& t : texts)
    for (const SurveyToken& token : t)
      if (!token.special()) ++count[token.id];
  std::vector<Index> counts;
  for (const auto& [id, n] : count) counts.push_back(n);
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const std::size_t cut = std::min<std::size_t>(500, counts.size() / 2);
  const Index limit = counts.empty() ? 0 : counts[cut];
  std::vector<Index> all;
  for (const SurveyTokens& t : texts) {
    Index best = -1;
    for (std::size_t i = 0; i < t.size(); ++i)
      if (!t[i].special() && count[t[i].id] <= limit && (best < 0 || count[t[i].id] < count[t[at(best)].id]))
        best = static_cast<Index>(i);
    all.push_back(best);
  }
  return all;
}

void read_related(const SurveySubject& model, const HeadSurveyOptions& o, ReadTexts& to) {
  std::map<std::string, std::map<Index, Index>> offsets;
  for (const RelatedText& r : o.related) {
    if (static_cast<Index>(to.related.size()) == o.texts) break;
    const SurveyTokens tokens = model.read(r.text, o.tokens);
    std::vector<Index> word(tokens.size(), -1), numbers;
    for (std::size_t t = 0; t < tokens.size(); ++t)
      for (std::size_t w = 0; w < r.words.size(); ++w) {
        // Spaces before a word belong to its first piece in decoders.
        const Index middle = tokens[t].end - 1;
        if (!tokens[t].special() && middle >= r.words[w].first && middle < r.words[w].second)
          word[t] = static_cast<Index>(w);
      }
    for (const WordRelation& relation : r.relations) {
      const auto has = [&](Index w) { return std::find(word.begin(), word.end(), w) != word.end(); };
      const bool whole = has(relation.from) && has(relation.to);
      auto found = std::find_if(to.names.begin(), to.names.end(),
                                [&](const RelationName& n) { return n.name == relation.name; });
      if (whole && found == to.names.end()) found = to.names.insert(found, {relation.name, 0, 0, 0});
      numbers.push_back(whole ? found - to.names.begin() : -1);
      if (whole) ++found->count, ++offsets[relation.name][relation.to - relation.from];
    }
    to.related.push_back(tokens), to.word_of.push_back(std::move(word)),
        to.relation_of.push_back(std::move(numbers));
  }
  for (RelationName& n : to.names)
    for (const auto& [offset, count] : offsets[n.name])
      if (const double share = static_cast<double>(count) / static_cast<double>(n.count); share > n.baseline)
        n.baseline = share, n.offset = offset;
}

ReadTexts read_all(const SurveySubject& model, const std::vector<std::string>& texts,
                   const HeadSurveyOptions& o) {
  ReadTexts all;
  const auto rows = static_cast<Index>(texts.size()), count = min_of(rows, o.texts);
  for (Index i = 0; i < count; ++i) {
    all.words.push_back(texts[at(i * rows / count)]);
    all.texts.push_back(model.read(all.words.back(), o.tokens));
  }
  all.rarest = rarest_of(all.texts);
  for (Index i = 0; i < o.repeats; ++i)
    all.repeats.push_back(
        model.repeated(o.seed + static_cast<std::uint64_t>(i), min_of(o.repeated, o.tokens / 2 - 1)));
  read_related(model, o, all);
  return all;
}

/// The same with at most so many texts, evenly chosen.
ReadTexts sampled(const ReadTexts& all, Index most) {
  const auto count = std::ssize(all.texts);
  if (count <= most) return all;
  ReadTexts some = all;
  some.texts.clear(), some.rarest.clear(), some.words.clear();
  for (Index i = 0; i < most; ++i) {
    const std::size_t text = at(i * count / most);
    some.texts.push_back(all.texts[text]), some.rarest.push_back(all.rarest[text]);
    some.words.push_back(all.words[text]);
  }
  return some;
}

/// The word, other than `from`, that a word looks at most: weights to a word's pieces are summed, those from
/// them averaged.
Index word_looked_at(const MapOfText& m, const std::vector<Index>& word, Index words, Index from) {
  std::vector<double> sum(at(words), 0);
  for (std::size_t i = 0; i < word.size(); ++i)
    for (std::size_t j = 0; word[i] == from && j < word.size(); ++j)
      if (word[j] >= 0 && word[j] != from)
        sum[at(word[j])] += m.at(static_cast<Index>(i), static_cast<Index>(j));
  const auto best = std::max_element(sum.begin(), sum.end());
  return *best > 0 ? best - sum.begin() : -1;
}

class Walker {
 public:
  Walker(SurveySubject& model, const ReadTexts& texts, const HeadSurveyOptions& o)
      : model_(model), texts_(texts), o_(o) {
    for (Index i = 0; i < model.layers(); ++i) first_.push_back(heads_), heads_ += model.heads(i);
    walk_.heads.resize(at(heads_));
    walk_.relations.assign(at(heads_), std::vector<Hits>(texts.names.size()));
    walk_.depth = DepthSums(model.layers());
  }
  Walk run(bool apart, const std::function<void(double)>& progress) {
    const std::size_t all = texts_.texts.size() + texts_.repeats.size() + texts_.related.size();
    std::size_t done = 0;
    const auto tell = [&] {
      if (progress) progress(static_cast<double>(++done) / static_cast<double>(all));
    };
    if (apart) walk_.apart = SmallMatrix(heads_, heads_);
    const auto behind = [&](Index layer) {
      if (layer + 1 == model_.layers()) tell();
    };
    each_text(texts_.texts, [&](std::size_t text, Index layer, const LayerMaps& maps) {
      look(text, apart && static_cast<Index>(text) < o_.apart, layer, maps), behind(layer);
    });
    if (o_.rows_only) {
      for (HeadSums& h : walk_.heads) h.finish();
      return std::move(walk_);
    }
    each_text(texts_.repeats, [&](std::size_t text, Index layer, const LayerMaps& maps) {
      for (Index h = 0; h < maps.heads; ++h)
        add_repeats(map_of(texts_.repeats[text], maps, h), sums(layer, h));
      behind(layer);
    });
    each_text(texts_.related, [&](std::size_t text, Index layer, const LayerMaps& maps) {
      relate(text, layer, maps), behind(layer);
    });
    for (std::size_t text = 0; text < texts_.texts.size() && static_cast<Index>(text) < o_.collapse; ++text)
      if (texts_.texts[text].size() > 1) add_collapse(model_, texts_.texts[text], walk_.depth);
    look_at_slopes();
    for (HeadSums& h : walk_.heads) h.finish();
    return std::move(walk_);
  }

 private:
  void look_at_slopes() {
    const std::vector<SurveyTokens>& all = texts_.texts;
    for (std::size_t text = 0; text < all.size() && static_cast<Index>(text) < o_.gradients; ++text) {
      const SurveyTokens &own = all[text], &other = all[(text + 1) % all.size()];
      if (own.size() < 3 || other.size() < 3) continue;
      const bool there = model_.run_slopes(own, other, [&](Index, Index layer, const LayerMaps& maps) {
        for (Index h = 0; h < maps.heads; ++h) add_slopes(map_of(own, maps, h), sums(layer, h));
      });
      if (!there) return;
    }
  }
  HeadSums& sums(Index layer, Index h) { return walk_.heads[at(first_[at(layer)] + h)]; }
  MapOfText map_of(const SurveyTokens& t, const LayerMaps& maps, Index h) const {
    MapOfText m{t, maps.weights + h * maps.tokens * maps.tokens};
    m.causal = model_.causal();
    if (!maps.value_norm.empty()) m.value_norm = &maps.value_norm[at(h)];
    if (!maps.score_rank.empty()) m.score_rank = maps.score_rank[at(h)];
    if (maps.slopes) m.slopes = maps.slopes + h * maps.tokens * maps.tokens;
    return m;
  }
  /// Texts in groups that are one forward each.
  template <class F>
  void each_text(const std::vector<SurveyTokens>& texts, F&& f) {
    for (std::size_t first = 0, end = 0; first < texts.size(); first = end) {
      for (std::size_t tokens = 0; end < texts.size() && (end == first || tokens < kGroupTokens); ++end)
        tokens += texts[end].size();
      model_.run(std::span(texts).subspan(first, end - first), !o_.rows_only,
                 [&](Index text, Index layer, const LayerMaps& maps) { f(first + at(text), layer, maps); });
    }
  }
  void look(std::size_t text, bool apart, Index layer, const LayerMaps& maps) {
    const SurveyTokens& t = texts_.texts[text];
    if (t.size() < 3) return;
    const Index n = maps.tokens;
    if (layer == 0 && !o_.rows_only) {
      kept_.clear();
      path_.emplace(n, model_.causal(), flows_ < o_.flow && n <= kMostFlowTokens);
      flows_ += n <= kMostFlowTokens;
    }
    model_.pool().parallel_for(maps.heads, [&](Index h, int) {
      MapOfText m = map_of(t, maps, h);
      m.rarest = texts_.rarest[text];
      add_figures(m, sums(layer, h));
    });
    if (o_.rows_only) return;
    for (Index h = 0; apart && h < maps.heads; ++h)
      kept_.emplace_back(maps.weights + h * n * n, maps.weights + (h + 1) * n * n);
    path_->add(maps, walk_.depth);
    if (layer + 1 == model_.layers()) finish(text, apart);
  }
  /// Behind the last layer of a text.
  void finish(std::size_t text, bool apart) {
    const SurveyTokens& t = texts_.texts[text];
    if (walk_.shown.pieces.empty() && !path_->layers().empty())
      walk_.shown = shown_path(*path_, t, texts_.words[text], model_.causal());
    if (!apart) return;
    std::vector<const float*> maps;
    for (const auto& k : kept_) maps.push_back(k.data());
    walk_.apart_rows +=
        add_divergences(maps, static_cast<Index>(t.size()), model_.causal(), walk_.apart, &model_.pool());
  }
  void relate(std::size_t text, Index layer, const LayerMaps& maps) {
    const RelatedText& r = o_.related[text];
    const auto words = static_cast<Index>(r.words.size());
    for (Index h = 0; h < maps.heads; ++h) {
      const MapOfText m = map_of(texts_.related[text], maps, h);
      std::vector<Index> looked(at(words), -2);
      const auto look_from = [&](Index w) {
        if (looked[at(w)] == -2) looked[at(w)] = word_looked_at(m, texts_.word_of[text], words, w);
        return looked[at(w)];
      };
      for (std::size_t k = 0; k < r.relations.size(); ++k) {
        const Index number = texts_.relation_of[text][k];
        if (number < 0) continue;
        Hits& hits = walk_.relations[at(first_[at(layer)] + h)][at(number)];
        hits.forth += look_from(r.relations[k].from) == r.relations[k].to;
        hits.back += look_from(r.relations[k].to) == r.relations[k].from;
      }
    }
  }

  SurveySubject& model_;
  const ReadTexts& texts_;
  const HeadSurveyOptions& o_;
  Walk walk_;
  std::vector<Index> first_;
  Index heads_ = 0, flows_ = 0;
  std::vector<std::vector<float>> kept_;  // maps of the text that is looked at
  std::optional<TextPath> path_;          // of the same
};

/// Heads whose rows are drawn evenly from all weights there can be.
HeadSums chance_of(const SurveySubject& model, const ReadTexts& texts, std::uint64_t seed) {
  HeadSums all;
  std::uint32_t count = 0;
  const auto weights_of = [&](Index n) {
    std::vector<float> w(at(n * n), 0);
    for (Index i = 0; i < n; ++i) {
      const Index end = model.causal() ? i + 1 : n;
      double sum = 0;
      for (Index j = 0; j < end; ++j) {
        const std::uint32_t u = Philox::block(seed, {count++, 0, 3, 0})[0];
        sum += w[at(i * n + j)] = static_cast<float>(-std::log((u + 0.5) / 4294967296.0));
      }
      for (Index j = 0; j < end; ++j) w[at(i * n + j)] = static_cast<float>(w[at(i * n + j)] / sum);
    }
    return w;
  };
  for (Index head = 0; head < kChanceHeads; ++head) {
    for (std::size_t i = 0; i < texts.texts.size(); ++i) {
      const std::vector<float> w = weights_of(static_cast<Index>(texts.texts[i].size()));
      MapOfText m{texts.texts[i], w.data()};
      m.causal = model.causal(), m.rarest = texts.rarest[i];
      const std::vector<double> ones(texts.texts[i].size(), 1);
      m.value_norm = &ones;
      add_figures(m, all);
    }
    for (const SurveyTokens& t : texts.repeats) {
      const std::vector<float> w = weights_of(static_cast<Index>(t.size()));
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
    s.chance.push_back(
        {alone || k >= slopes ? kNone : f.chance.figures[k].value(), f.chance.figures[k].half(), 0, 0});
  for (Index layer = 0, n = 0; layer < s.layers; ++layer)
    for (Index h = 0; h < model.heads(layer); ++h, ++n) {
      const HeadSums& sums = f.own.heads[at(n)];
      SurveyedModelHead head{.layer = layer, .head = h, .offset = sums.best_offset()};
      for (std::size_t k = 0; k < kTextFigureCount; ++k)
        head.figures.push_back(value_of(sums.figures[k], alone ? Mean{} : f.other.heads[at(n)].figures[k],
                                        alone, (!alone && k < slopes) || sums.figures[k].n > 0));
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
  const bool alone = o.rows_only || shuffled == nullptr;
  const ReadTexts read = read_all(model, texts, o);
  const auto part = [&](double from, double size) -> std::function<void(double)> {
    if (!o.progress) return {};
    return [&o, from, size](double share) { o.progress(from + size * share); };
  };
  Findings f;
  f.own = Walker(model, read, o).run(!alone && o.apart > 0, part(0, alone ? 1 : 0.5));
  if (!alone) {
    const ReadTexts fewer = sampled(read, o.shuffled);
    f.other = Walker(*shuffled, fewer, o).run(false, part(0.5, 0.5));
    f.chance = chance_of(model, fewer, o.seed);
    const SmallMatrix vocabulary = model.vocabulary_product();
    f.matrices = all_matrix_figures(model, vocabulary);
    f.other_matrices = all_matrix_figures(*shuffled, vocabulary);
  }
  HeadSurvey s{
      .layers = model.layers(), .texts = static_cast<Index>(read.texts.size()), .causal = model.causal()};
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
  const auto model = open_subject(path, threads);
  const auto shuffled = o.rows_only ? nullptr : open_subject(path, threads, true, o.seed);
  return survey_subjects(*model, shuffled.get(), texts, o);
}

}  // namespace headwise
