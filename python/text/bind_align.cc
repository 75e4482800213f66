// hw.align: weights between the words of sentence pairs, and their links, by a translator's cross-attention.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "headwise/translation/align_words.h"
#include "python/text/bind_align.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;
using Places = std::vector<std::pair<Index, Index>>;
using Weights = nb::ndarray<nb::numpy, float>;

std::vector<std::string> texts_of(const std::string& text, std::span<const TextSpan> words) {
  std::vector<std::string> all;
  for (const TextSpan& w : words)
    all.push_back(text.substr(static_cast<std::size_t>(w.begin), static_cast<std::size_t>(w.end - w.begin)));
  return all;
}

Weights array_of(const WordWeights& w) {
  auto* kept = new std::vector<float>(w.weights);
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const std::size_t shape[] = {w.heads.size(), w.target_words.size(), w.source_words.size()};
  return Weights(kept->data(), 3, shape, owner);
}

Places places_of(const WordLinks& links) {
  Places all;
  for (const Link& l : links) all.emplace_back(l.source, l.target);
  return all;
}

/// The mean of the back's heads, [source words, target words]; None without a back.
nb::object back_of(const AlignOptions& options, std::size_t pair) {
  if (options.back.empty()) return nb::none();
  const WordWeights& w = options.back[pair];
  auto* kept = new std::vector<float>(w.mean(options.back_heads));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const std::size_t shape[] = {w.target_words.size(), w.source_words.size()};
  return nb::cast(Weights(kept->data(), 2, shape, owner));
}

using Words = std::vector<std::string>;
using Rules = std::tuple<std::string, std::string, bool>;  // step, merge, shares

/// Heads, then words, weights [heads, target words, source words], those of the way back and merged links of
/// each pair.
nb::tuple align_pairs(const std::string& path, const std::string& back_path, const Pairs& pairs,
                      const Rules& rules, const Words& heads, const Words& back_heads, int threads) {
  const auto& [step, merge, shares] = rules;
  AlignOptions options{.step = parse_step(step), .rules = {.merge = parse_merge(merge), .shares = shares}};
  for (const std::string& h : heads) options.heads.push_back(parse_cross_head(h));
  for (const std::string& h : back_heads) options.back_heads.push_back(parse_cross_head(h));
  std::vector<SentencePair> sentences;
  for (const auto& [source, target] : pairs) {
    sentences.push_back({source, target});
    require(!split_sentence(source).empty() && !split_sentence(target).empty(), ErrorKind::bad_argument,
            "align", "pair ", sentences.size(), " has a sentence without words; give two sentences");
  }
  std::vector<WordWeights> weights, back;
  std::vector<HeadLinks> links;
  {
    const nb::gil_scoped_release free;
    Session session({.threads = threads});
    weights = word_weights(Translator::load(path), sentences, options.step, session);
    if (!back_path.empty())
      back = word_weights(Translator::load(back_path), turned_pairs(sentences), options.step, session);
    options.back = back;
    links = align_words(weights, options, {});
  }
  Places names;
  if (!weights.empty())
    for (const LayerHead& h : weights[0].heads) names.emplace_back(h.layer, h.head);
  nb::list found;
  for (std::size_t i = 0; i < weights.size(); ++i)
    found.append(nb::make_tuple(texts_of(sentences[i].source, weights[i].source_words),
                                texts_of(sentences[i].target, weights[i].target_words), array_of(weights[i]),
                                back_of(options, i), places_of(links[0].pairs[i])));
  return nb::make_tuple(names, found);
}

using Map = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Places links_between(const Map& w, const std::string& merge, bool shares, const std::optional<Map>& back) {
  std::span<const float> other;
  if (back) {
    require(back->shape(0) == w.shape(1) && back->shape(1) == w.shape(0), ErrorKind::bad_shape, "word_links",
            "back is ", back->shape(0), " x ", back->shape(1), "; give source words x target words, ",
            w.shape(1), " x ", w.shape(0));
    other = {back->data(), back->size()};
  }
  return places_of(links_of({w.data(), w.size()}, static_cast<Index>(w.shape(0)),
                            static_cast<Index>(w.shape(1)), {.merge = parse_merge(merge), .shares = shares},
                            other));
}

}  // namespace

void bind_align(nb::module_& m) {
  m.def("align_pairs", &align_pairs, nb::arg("path"), nb::arg("back"), nb::arg("pairs"), nb::arg("rules"),
        nb::arg("heads"), nb::arg("back_heads"), nb::arg("threads"),
        nb::sig("def align_pairs(path: str, back: str, pairs: Sequence[tuple[str, str]], rules: tuple[str, "
                "str, bool], heads: Sequence[str], back_heads: Sequence[str], threads: int) -> "
                "tuple[list[tuple[int, int]], list[tuple[list[str], list[str], Any, Any, list[tuple[int, "
                "int]]]]]"),
        "Heads; then source words, target words, weights, those of the way back and links of each pair.");
  m.def("word_links", &links_between, nb::arg("weights"), nb::arg("merge"), nb::arg("shares"),
        nb::arg("back").none(),
        nb::sig("def word_links(weights: Array, merge: str, shares: bool, back: Array | None) -> "
                "list[tuple[int, int]]"),
        "Links of weights [target words, source words] and, of the way back, [source words, target words].");
}

}  // namespace headwise::python
