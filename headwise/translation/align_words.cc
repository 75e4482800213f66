#include "headwise/translation/align_words.h"

#include <algorithm>
#include <charconv>

#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "align";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kPairsAtOnce = 32;
constexpr Index kWeightsAtOnce = Index{1} << 20;  // of a head: taps copy 2^26 numbers at most

/// One tap's weights between pieces, pooled into words and put behind `to`.
void pool(const Tap& tap, std::span<const WordRange> source, std::span<const WordRange> target, StepRow step,
          WordWeights& to) {
  const Index sources = to.sources(), targets = to.targets();
  std::vector<Index> pieces(static_cast<std::size_t>(targets));
  for (const WordRange& r : target)
    for (Index w = r.first; w < r.last; ++w) ++pieces[static_cast<std::size_t>(w)];
  for (Index h = 0; h < tap.heads; ++h) {
    std::vector<double> words(static_cast<std::size_t>(targets * sources));
    for (std::size_t t = 0; t < target.size(); ++t)
      for (std::size_t s = 0; s < source.size(); ++s) {
        const double w =
            tap.at(h, static_cast<Index>(t) + (step == StepRow::reads ? 1 : 0), static_cast<Index>(s));
        for (Index i = target[t].first; i < target[t].last; ++i)
          for (Index j = source[s].first; j < source[s].last; ++j)
            words[static_cast<std::size_t>(i * sources + j)] +=
                w / static_cast<double>(pieces[static_cast<std::size_t>(i)]);
      }
    to.heads.push_back({tap.block, h});
    to.weights.insert(to.weights.end(), words.begin(), words.end());
  }
}

/// As many of the first pairs as are looked at together.
std::vector<PairTokens> tokens_at_once(const Translator& model, std::span<const SentencePair> pairs) {
  std::vector<PairTokens> some;
  Index rows = 0, longest = 0;
  while (some.size() < std::min(kPairsAtOnce, pairs.size())) {
    PairTokens next = model.encode(pairs[some.size()].source, pairs[some.size()].target);
    rows += std::ssize(next.target) + 1;
    longest = std::max<Index>(longest, std::ssize(next.source) + 1);
    if (!some.empty() && rows * longest > kWeightsAtOnce) break;
    some.push_back(std::move(next));
  }
  return some;
}

void check_gold(const GoldPair& g, std::span<const WordWeights> weights) {
  require(g.line <= static_cast<Index>(weights.size()), ErrorKind::bad_argument, kOp, "the gold has pair ",
          g.line, " but there are ", weights.size(), " pairs; give the file that the gold was made of");
  const WordWeights& w = weights[static_cast<std::size_t>(g.line - 1)];
  for (const Link& l : g.possible)
    require(l.source < w.sources() && l.target < w.targets(), ErrorKind::bad_argument, kOp,
            "the gold links words ", l.source, " and ", l.target, " of pair ", g.line, ", which has ",
            w.sources(), " and ", w.targets(),
            " words (counted from 0); give the file that the gold was made of");
}

}  // namespace

std::vector<SentencePair> parse_sentence_pairs(std::string_view all, std::string_view where) {
  std::vector<SentencePair> pairs;
  if (all.starts_with(kByteOrderMark)) all.remove_prefix(kByteOrderMark.size());
  while (!all.empty()) {
    const std::size_t end = std::min(all.find('\n'), all.size());
    const std::string_view line = trimmed(all.substr(0, end), "\r");
    all.remove_prefix(std::min(end + 1, all.size()));
    constexpr std::string_view kBars = " ||| ";
    const std::size_t tab = line.find('\t'), bars = line.find(kBars);
    const std::size_t at = tab != line.npos ? tab : bars, wide = tab != line.npos ? 1 : kBars.size();
    require(at != line.npos, ErrorKind::bad_argument, where, "line ", pairs.size() + 1,
            " has neither a tab nor \" ||| \" between two sentences; put one there");
    pairs.push_back({std::string(line.substr(0, at)), std::string(line.substr(at + wide))});
    require(!split_sentence(pairs.back().source).empty() && !split_sentence(pairs.back().target).empty(),
            ErrorKind::bad_argument, where, "line ", pairs.size(),
            " has a sentence without words; give two sentences");
  }
  return pairs;
}

StepRow parse_step(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kStepNames); ++i)
    if (kStepNames[i] == name) return static_cast<StepRow>(i);
  throw Error(ErrorKind::bad_argument,
              text("align: there is no step ", quoted(name), "; give writes or reads"));
}

LayerHead parse_cross_head(std::string_view words) {
  LayerHead head;
  const char *end = words.data() + words.size(), *at = words.data();
  auto [dot, bad] = std::from_chars(at, end, head.layer);
  bool good = bad == std::errc() && dot != end && *dot == '.';
  if (good) {
    const auto [last, worse] = std::from_chars(dot + 1, end, head.head);
    good = worse == std::errc() && last == end && head.layer >= 0 && head.head >= 0;
  }
  require(good, ErrorKind::bad_argument, kOp, "there is no head ", quoted(words),
          "; write layer and head, such as 1.3");
  return head;
}

std::span<const float> WordWeights::of(std::size_t head) const {
  const auto size = static_cast<std::size_t>(sources() * targets());
  return std::span(weights).subspan(head * size, size);
}

std::vector<float> WordWeights::mean(std::span<const LayerHead> wanted) const {
  require(!heads.empty(), ErrorKind::unsupported, kOp, "the model's cross-attention gives no weights");
  std::vector<double> sum(static_cast<std::size_t>(sources() * targets()));
  const auto add = [&](std::size_t h) {
    const std::span<const float> w = of(h);
    for (std::size_t i = 0; i < w.size(); ++i) sum[i] += static_cast<double>(w[i]);
  };
  for (const LayerHead& w : wanted) {
    const auto at = std::find(heads.begin(), heads.end(), w);
    require(at != heads.end(), ErrorKind::bad_argument, kOp, "there is no head ", w.layer, ".", w.head,
            "; the model's last one is ", heads.back().layer, ".", heads.back().head);
    add(static_cast<std::size_t>(at - heads.begin()));
  }
  if (wanted.empty())
    for (std::size_t h = 0; h < heads.size(); ++h) add(h);
  const auto count = static_cast<double>(wanted.empty() ? heads.size() : wanted.size());
  std::vector<float> mean;
  for (const double x : sum) mean.push_back(static_cast<float>(x / count));
  return mean;
}

std::vector<WordWeights> word_weights(const Translator& model, std::span<const SentencePair> pairs,
                                      StepRow step, Session& session) {
  std::vector<WordWeights> all;
  for (std::size_t at = 0; at < pairs.size();) {
    const std::vector<PairTokens> tokens = tokens_at_once(model, pairs.subspan(at));
    const auto some = pairs.subspan(at, tokens.size());
    at += tokens.size();
    std::vector<const PairTokens*> asked;
    for (const PairTokens& t : tokens) asked.push_back(&t);
    const std::vector<Tap> taps = model.cross_weights(asked, session);
    for (std::size_t i = 0; i < some.size(); ++i) {
      WordWeights w{.source_words = split_sentence(some[i].source),
                    .target_words = split_sentence(some[i].target),
                    .heads = {},
                    .weights = {}};
      const auto source = words_of_tokens(model.bpe(), tokens[i].source, w.source_words);
      const auto target = words_of_tokens(model.bpe(), tokens[i].target, w.target_words);
      for (const Tap& t : taps)
        if (t.sequence == static_cast<Index>(i)) pool(t, source, target, step, w);
      all.push_back(std::move(w));
    }
  }
  return all;
}

WordLinks links_of(std::span<const float> weights, Index targets, Index sources, const LinkRules& rules,
                   std::span<const float> back) {
  const auto chosen = [&](std::span<const float> w, Index rows, Index columns) {
    return rules.shares ? shares_of(w, rows, columns) : std::vector<float>(w.begin(), w.end());
  };
  const std::vector<float> w = chosen(weights, targets, sources);
  const WordLinks forward = best_of_rows(w, targets, sources);
  if (back.empty()) return merge_links(forward, best_of_columns(w, targets, sources), rules.merge);
  require(back.size() == weights.size(), ErrorKind::bad_shape, kOp, "the way back has ", back.size(),
          " weights, the way there ", weights.size(), "; give one for each pair of words");
  WordLinks backward = best_of_rows(chosen(back, sources, targets), sources, targets);
  for (Link& l : backward) std::swap(l.source, l.target);
  std::sort(backward.begin(), backward.end());
  return merge_links(forward, backward, rules.merge);
}

std::vector<SentencePair> turned_pairs(std::span<const SentencePair> pairs) {
  std::vector<SentencePair> turned;
  for (const SentencePair& p : pairs) turned.push_back({p.target, p.source});
  return turned;
}

std::vector<HeadLinks> align_words(std::span<const WordWeights> weights, const AlignOptions& options,
                                   std::span<const GoldPair> gold) {
  std::vector<HeadLinks> all(1);
  if (!weights.empty())
    for (const LayerHead& h : weights[0].heads) all.push_back({.head = h, .pairs = {}});
  require(options.back.empty() || options.back.size() == weights.size(), ErrorKind::bad_shape, kOp,
          "the way back has ", options.back.size(), " pairs, the way there ", weights.size(),
          "; give the same ones");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const WordWeights& w = weights[i];
    const std::vector<float> back =
        options.back.empty() ? std::vector<float>() : options.back[i].mean(options.back_heads);
    all[0].pairs.push_back(links_of(w.mean(options.heads), w.targets(), w.sources(), options.rules, back));
    for (std::size_t h = 0; h < w.heads.size(); ++h)
      all[h + 1].pairs.push_back(links_of(w.of(h), w.targets(), w.sources(), options.rules, back));
  }
  for (const GoldPair& g : gold) {
    check_gold(g, weights);
    for (HeadLinks& h : all) h.score.add(h.pairs[static_cast<std::size_t>(g.line - 1)], g);
  }
  return all;
}

}  // namespace headwise
