#include "headwise/lab/survey/head_survey.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "headwise/base/error.h"
#include "headwise/base/random.h"
#include "headwise/lab/survey/head_map.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "survey";
constexpr Index kChanceHeads = 4;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Hits of one relation by one head, in both directions.
struct Hits {
  Index forth = 0, back = 0;
};

/// What one walk over all texts gives for one model.
struct Walk {
  std::vector<HeadSums> heads;
  std::vector<std::vector<Hits>> relations;  // [heads][relations]
  SmallMatrix apart;
  Index apart_rows = 0;
};

/// Texts as the model reads them, and what is true of them.
struct ReadTexts {
  std::vector<SurveyTokens> texts, repeats, related;
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
  for (Index i = 0; i < count; ++i) all.texts.push_back(model.read(texts[at(i * rows / count)], o.tokens));
  all.rarest = rarest_of(all.texts);
  for (Index i = 0; i < o.repeats; ++i)
    all.repeats.push_back(
        model.repeated(o.seed + static_cast<std::uint64_t>(i), min_of(o.repeated, o.tokens / 2 - 1)));
  read_related(model, o, all);
  return all;
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
  }
  Walk run(bool apart, const std::function<void(double)>& progress) {
    const std::size_t all = texts_.texts.size() + texts_.repeats.size() + texts_.related.size();
    std::size_t done = 0;
    const auto tell = [&] {
      if (progress) progress(static_cast<double>(++done) / static_cast<double>(all));
    };
    if (apart) walk_.apart = SmallMatrix(heads_, heads_);
    for (std::size_t i = 0; i < texts_.texts.size(); ++i, tell())
      look(texts_.texts[i], texts_.rarest[i], apart && static_cast<Index>(i) < o_.apart);
    for (const SurveyTokens& t : texts_.repeats) {
      model_.run(t, [&](Index layer, const LayerMaps& maps) {
        for (Index h = 0; h < maps.heads; ++h) add_repeats(map_of(t, maps, h), sums(layer, h));
      });
      tell();
    }
    for (std::size_t i = 0; i < texts_.related.size(); ++i, tell()) relate(i);
    for (HeadSums& h : walk_.heads) h.finish();
    return std::move(walk_);
  }

 private:
  HeadSums& sums(Index layer, Index h) { return walk_.heads[at(first_[at(layer)] + h)]; }
  MapOfText map_of(const SurveyTokens& t, const LayerMaps& maps, Index h) const {
    MapOfText m{t, maps.weights + h * maps.tokens * maps.tokens};
    m.causal = model_.causal();
    if (!maps.value_norm.empty()) m.value_norm = &maps.value_norm[at(h)];
    if (!maps.score_rank.empty()) m.score_rank = maps.score_rank[at(h)];
    return m;
  }
  void look(const SurveyTokens& t, Index rarest, bool apart) {
    if (t.size() < 3) return;
    const auto n = static_cast<Index>(t.size());
    std::vector<std::vector<float>> kept;  // of this text alone
    model_.run(t, [&](Index layer, const LayerMaps& maps) {
      for (Index h = 0; h < maps.heads; ++h) {
        MapOfText m = map_of(t, maps, h);
        m.rarest = rarest;
        add_figures(m, sums(layer, h));
        if (apart) kept.emplace_back(m.weights, m.weights + n * n);
      }
    });
    if (!apart) return;
    std::vector<const float*> maps;
    for (const auto& k : kept) maps.push_back(k.data());
    walk_.apart_rows += add_divergences(maps, n, model_.causal(), walk_.apart);
  }
  void relate(std::size_t text) {
    const RelatedText& r = o_.related[text];
    const SurveyTokens& t = texts_.related[text];
    const auto words = static_cast<Index>(r.words.size());
    model_.run(t, [&](Index layer, const LayerMaps& maps) {
      for (Index h = 0; h < maps.heads; ++h) {
        const MapOfText m = map_of(t, maps, h);
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
    });
  }

  SurveySubject& model_;
  const ReadTexts& texts_;
  const HeadSurveyOptions& o_;
  Walk walk_;
  std::vector<Index> first_;
  Index heads_ = 0;
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

void name_roles(const HeadSurvey& s, const HeadSurveyOptions& o, SurveyedModelHead& h) {
  constexpr double kAbove = 0.1;
  for (std::size_t f = 0; f < kTextFigureCount; ++f) {
    const FigureValue &v = h.figures[f], &chance = s.chance[f];
    if (kTextFigures[f].role_from <= 0 || v.value < kTextFigures[f].role_from) continue;
    const double low = v.value - v.half;
    const bool above = low > v.shuffled + v.shuffled_half && v.value >= v.shuffled + kAbove &&
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

HeadSurvey survey_subjects(SurveySubject& model, SurveySubject& shuffled,
                           const std::vector<std::string>& texts, const HeadSurveyOptions& o) {
  require(o.texts > 0 && o.tokens >= 8, ErrorKind::bad_argument, kOp, "asked for ", o.texts, " texts of ",
          o.tokens, " tokens; give 1 text and 8 tokens or more");
  require(!texts.empty(), ErrorKind::bad_argument, kOp, "there are no texts; give some");
  const ReadTexts read = read_all(model, texts, o);
  const auto part = [&](double from, double size) -> std::function<void(double)> {
    if (!o.progress) return {};
    return [&o, from, size](double share) { o.progress(from + size * share); };
  };
  const Walk own = Walker(model, read, o).run(o.apart > 0, part(0, 0.5)),
             other = Walker(shuffled, read, o).run(false, part(0.5, 0.5));
  HeadSurvey s{
      .layers = model.layers(), .texts = static_cast<Index>(read.texts.size()), .causal = model.causal()};
  for (const SurveyTokens& t : read.texts) s.tokens += static_cast<Index>(t.size());
  s.relations = read.names;
  const HeadSums chance = chance_of(model, read, o.seed);
  for (const Mean& m : chance.figures) s.chance.push_back({m.value(), m.half(), 0, 0});
  const SmallMatrix vocabulary = model.vocabulary_product();
  for (Index layer = 0, n = 0; layer < s.layers; ++layer)
    for (Index h = 0; h < model.heads(layer); ++h, ++n) {
      SurveyedModelHead head{.layer = layer, .head = h, .offset = own.heads[at(n)].best_offset()};
      for (std::size_t f = 0; f < kTextFigureCount; ++f) {
        const Mean &a = own.heads[at(n)].figures[f], &b = other.heads[at(n)].figures[f];
        head.figures.push_back({a.value(), a.half(), b.value(), b.half()});
      }
      const auto mine = matrix_figures(model.matrices(layer, h), vocabulary),
                 theirs = matrix_figures(shuffled.matrices(layer, h), vocabulary);
      for (std::size_t f = 0; f < kMatrixFigureCount; ++f) head.figures.push_back({mine[f], 0, theirs[f], 0});
      for (std::size_t r = 0; r < s.relations.size(); ++r) {
        const double count = static_cast<double>(max_of(1, s.relations[r].count));
        const Hits &a = own.relations[at(n)][r], &b = other.relations[at(n)][r];
        head.relations.push_back({static_cast<double>(a.forth) / count, static_cast<double>(a.back) / count,
                                  static_cast<double>(b.forth) / count, static_cast<double>(b.back) / count});
      }
      name_roles(s, o, head);
      s.heads.push_back(std::move(head));
    }
  place_heads(own, o, s);
  return s;
}

HeadSurvey survey_model(const std::string& path, const std::vector<std::string>& texts, int threads,
                        const HeadSurveyOptions& o) {
  const auto model = open_subject(path, threads), shuffled = open_subject(path, threads, true, o.seed);
  return survey_subjects(*model, *shuffled, texts, o);
}

}  // namespace headwise
