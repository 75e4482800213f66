#include "headwise/lab/survey/walk.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>

#include "headwise/lab/depth/collapse.h"
#include "headwise/lab/survey/head_map.h"

namespace headwise {
namespace {

// Of one forward, or one text: its tokens, and entries of one map of each of its texts.
constexpr std::size_t kGroupTokens = 1024, kGroupEntries = 32768;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// The token each text uses that the corpus has least, among the rarer half of all or beyond the 500 most
/// frequent.
std::vector<Index> rarest_of(const std::vector<SurveyTokens>& texts, bool cross) {
  const auto keys_of = [cross](const SurveyTokens& t) -> const std::vector<SurveyToken>& {
    return cross ? t.source : t;
  };
  std::map<TokenId, Index> count;
  for (const SurveyTokens& t : texts)
    for (const SurveyToken& token : keys_of(t))
      if (!token.special()) ++count[token.id];
  std::vector<Index> counts;
  for (const auto& [id, n] : count) counts.push_back(n);
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const std::size_t cut = std::min<std::size_t>(500, counts.size() / 2);
  const Index limit = counts.empty() ? 0 : counts[cut];
  std::vector<Index> all;
  for (const SurveyTokens& t : texts) {
    Index best = -1, least = limit + 1;
    for (std::size_t i = 0; i < keys_of(t).size(); ++i) {
      const SurveyToken& key = keys_of(t)[i];
      if (!key.special() && count[key.id] < least) best = static_cast<Index>(i), least = count[key.id];
    }
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

/// Texts that are one forward, by their numbers.
using Group = std::span<const std::size_t>;

class Walker {
 public:
  Walker(SurveySubject& model, const ReadTexts& texts, const HeadSurveyOptions& o, const WalkOptions& walk)
      : model_(model), texts_(texts), o_(o), options_(walk) {
    for (Index i = 0; i < model.layers(); ++i) first_.push_back(heads_), heads_ += model.heads(i);
    walk_.heads.resize(at(heads_));
    walk_.relations.assign(at(heads_), std::vector<Hits>(texts.names.size()));
    walk_.depth = DepthSums(model.layers());
    flows_.resize(texts.texts.size());
    Index flows = 0;
    for (std::size_t i = 0; i < flows_.size(); ++i) {
      const auto n = std::ssize(texts.texts[i]);
      flows_[i] = n >= kFewestTokens && n <= kMostFlowTokens && flows < o.flow;
      flows += flows_[i];
    }
  }
  Walk run() {
    if (options_.apart) walk_.apart = SmallMatrix(heads_, heads_);
    each_group(texts_.texts,
               [&](Group group, Index layer, std::span<const LayerMaps> maps) { look(group, layer, maps); });
    if (!o_.rows_only) look_at_the_rest();
    for (HeadSums& h : walk_.heads) h.finish();
    return std::move(walk_);
  }

 private:
  /// What lives while one text of a group does.
  struct OpenText {
    std::optional<TextPath> path = {};
    std::vector<std::vector<float>> kept = {};  // maps of all layers, where heads are held against each other
  };

  void look_at_the_rest() {
    each_group(texts_.repeats, [&](Group group, Index layer, std::span<const LayerMaps> maps) {
      each_head(layer, [&](Index h, HeadSums& to) {
        for (std::size_t i = 0; i < group.size(); ++i)
          add_repeats(map_of(texts_.repeats[group[i]], maps[i], h), to);
      });
    });
    each_group(texts_.related, [&](Group group, Index layer, std::span<const LayerMaps> maps) {
      each_head(layer, [&](Index h, HeadSums&) {
        for (std::size_t i = 0; i < group.size(); ++i) relate(group[i], layer, h, maps[i]);
      });
    });
    const Index collapsed = model_.cross() ? 0 : min_of(o_.collapse, std::ssize(texts_.texts));
    for (std::size_t text = 0; text < at(collapsed); ++text)
      if (texts_.texts[text].size() > 1) add_collapse(model_, texts_.texts[text], walk_.depth);
    look_at_slopes();
  }
  void look_at_slopes() {
    const std::vector<SurveyTokens>& all = texts_.texts;
    for (std::size_t text = 0; text < all.size() && static_cast<Index>(text) < o_.gradients; ++text) {
      const SurveyTokens &own = all[text], &other = all[(text + 1) % all.size()];
      if (std::ssize(own) < kFewestTokens || std::ssize(other) < kFewestTokens) continue;
      const auto look = [&](Index layer, Index, std::span<const LayerMaps> maps) {
        each_head(layer, [&](Index h, HeadSums& to) { add_slopes(map_of(own, maps[0], h), to); });
      };
      if (!model_.run_slopes(own, other, look)) return;
    }
  }
  /// f(head, its sums): heads side by side, so every sum is taken in the order of the texts.
  template <class F>
  void each_head(Index layer, F&& f) {
    model_.pool().parallel_for(model_.heads(layer),
                               [&](Index h, int) { f(h, walk_.heads[at(first_[at(layer)] + h)]); });
  }
  MapOfText map_of(const SurveyTokens& t, const LayerMaps& maps, Index h) const {
    MapOfText m{t, maps.weights + h * maps.tokens * maps.keys};
    m.causal = model_.causal();
    if (model_.cross()) m.keys = &t.source;
    if (!maps.value_norm.empty()) m.value_norm = &maps.value_norm[at(h)];
    if (!maps.score_rank.empty()) m.score_rank = maps.score_rank[at(h)];
    if (maps.slopes) m.slopes = maps.slopes + h * maps.tokens * maps.tokens;
    return m;
  }
  /// Texts of like lengths together: f(numbers of some texts, layer, what was seen of them).
  template <class F>
  void each_group(const std::vector<SurveyTokens>& texts, F&& f) {
    std::vector<std::size_t> order(texts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return texts[a].size() < texts[b].size(); });
    for (std::size_t first = 0, end = 0; first < order.size(); first = end) {
      std::vector<SurveyTokens> group;
      for (std::size_t tokens = 0, entries = 0; end < order.size(); ++end) {
        const std::size_t n = texts[order[end]].size();
        if (end > first && (tokens + n > kGroupTokens || entries + n * n > kGroupEntries)) break;
        tokens += n, entries += n * n;
        group.push_back(texts[order[end]]);
      }
      const Group numbers(order.data() + first, group.size());
      model_.run(group, !o_.rows_only, [&](Index layer, Index from, std::span<const LayerMaps> maps) {
        f(numbers.subspan(at(from), maps.size()), layer, maps);
        if (layer + 1 == model_.layers()) tell(maps.size());
      });
    }
  }
  void tell(std::size_t texts) {
    done_ += texts;
    const std::size_t all = texts_.texts.size() + texts_.repeats.size() + texts_.related.size();
    if (options_.progress) options_.progress(static_cast<double>(done_) / static_cast<double>(all));
  }
  bool keeps(std::size_t text) const { return options_.apart && static_cast<Index>(text) < o_.apart; }

  void look(Group group, Index layer, std::span<const LayerMaps> maps) {
    each_head(layer, [&](Index h, HeadSums& to) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        MapOfText m = map_of(texts_.texts[group[i]], maps[i], h);
        m.rarest = texts_.rarest[group[i]];
        add_figures(m, to);
      }
    });
    if (o_.rows_only) return;
    if (layer == 0) open_.assign(group.size(), {});
    model_.pool().parallel_for(std::ssize(group),
                               [&](Index i, int) { follow(group[at(i)], layer, maps[at(i)], open_[at(i)]); });
    for (OpenText& t : open_)
      if (t.path) t.path->give(walk_.depth);
    for (std::size_t i = 0; i < group.size() && layer + 1 == model_.layers(); ++i) finish(group[i], open_[i]);
  }
  /// One text through one more layer.
  void follow(std::size_t text, Index layer, const LayerMaps& maps, OpenText& t) const {
    const Index n = maps.tokens, entries = n * maps.keys;
    if (n < kFewestTokens) return;
    for (Index h = 0; keeps(text) && h < maps.heads; ++h)
      t.kept.emplace_back(maps.weights + h * entries, maps.weights + (h + 1) * entries);
    if (model_.cross()) return;  // tokens of two texts: no path leads through several layers
    if (layer == 0) t.path.emplace(n, model_.causal(), flows_[text]);
    t.path->add(maps);
  }
  /// Behind the last layer of a text.
  void finish(std::size_t text, const OpenText& t) {
    const SurveyTokens& tokens = texts_.texts[text];
    const auto shown = std::find(flows_.begin(), flows_.end(), true) - flows_.begin();
    if (t.path && shown == static_cast<std::ptrdiff_t>(text))
      walk_.shown = shown_path(*t.path, tokens, texts_.words[text], model_.causal());
    if (t.kept.empty()) return;
    std::vector<const float*> maps;
    for (const auto& k : t.kept) maps.push_back(k.data());
    const auto rows = std::ssize(tokens), keys = model_.cross() ? std::ssize(tokens.source) : rows;
    walk_.apart_rows += add_divergences(maps, {rows, keys, model_.causal()}, walk_.apart, &model_.pool());
  }
  void relate(std::size_t text, Index layer, Index h, const LayerMaps& maps) {
    const RelatedText& r = o_.related[text];
    const auto words = static_cast<Index>(r.words.size());
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

  SurveySubject& model_;
  const ReadTexts& texts_;
  const HeadSurveyOptions& o_;
  const WalkOptions& options_;
  Walk walk_;
  std::vector<Index> first_;
  Index heads_ = 0;
  std::size_t done_ = 0;
  std::vector<bool> flows_;     // by text: its flow is taken
  std::vector<OpenText> open_;  // of the group that runs
};

}  // namespace

ReadTexts read_all(const SurveySubject& model, const std::vector<std::string>& texts,
                   const HeadSurveyOptions& o) {
  ReadTexts all;
  const auto rows = static_cast<Index>(texts.size()), count = min_of(rows, o.texts);
  for (Index i = 0; i < count; ++i) {
    all.words.push_back(texts[at(i * rows / count)]);
    all.texts.push_back(model.read(all.words.back(), o.tokens));
  }
  all.rarest = rarest_of(all.texts, model.cross());
  for (Index i = 0; i < (model.cross() ? 0 : o.repeats); ++i)
    all.repeats.push_back(
        model.repeated(o.seed + static_cast<std::uint64_t>(i), min_of(o.repeated, o.tokens / 2 - 1)));
  read_related(model, o, all);
  return all;
}

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

Walk walk_model(SurveySubject& model, const ReadTexts& texts, const HeadSurveyOptions& o,
                const WalkOptions& walk) {
  return Walker(model, texts, o, walk).run();
}

}  // namespace headwise
