// hw.align: weights between the words of sentence pairs, and their links, by a translator's cross-attention.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
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

/// Heads, then words, weights [heads, target words, source words] and merged links of each pair.
nb::tuple align_pairs(const std::string& path, const Pairs& pairs, const std::string& step,
                      const std::string& merge, const std::vector<std::string>& heads, int threads) {
  AlignOptions options{.step = parse_step(step), .merge = parse_merge(merge)};
  for (const std::string& h : heads) options.heads.push_back(parse_cross_head(h));
  std::vector<SentencePair> sentences;
  for (const auto& [source, target] : pairs) {
    sentences.push_back({source, target});
    require(!split_sentence(source).empty() && !split_sentence(target).empty(), ErrorKind::bad_argument,
            "align", "pair ", sentences.size(), " has a sentence without words; give two sentences");
  }
  std::vector<WordWeights> weights;
  std::vector<HeadLinks> links;
  {
    const nb::gil_scoped_release free;
    Session session({.threads = threads});
    weights = word_weights(Translator::load(path), sentences, options.step, session);
    links = align_words(weights, options, {});
  }
  Places names;
  if (!weights.empty())
    for (const LayerHead& h : weights[0].heads) names.emplace_back(h.layer, h.head);
  nb::list found;
  for (std::size_t i = 0; i < weights.size(); ++i)
    found.append(nb::make_tuple(texts_of(sentences[i].source, weights[i].source_words),
                                texts_of(sentences[i].target, weights[i].target_words), array_of(weights[i]),
                                places_of(links[0].pairs[i])));
  return nb::make_tuple(names, found);
}

Places links_between(const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& w,
                     const std::string& merge) {
  return places_of(links_of({w.data(), w.size()}, static_cast<Index>(w.shape(0)),
                            static_cast<Index>(w.shape(1)), parse_merge(merge)));
}

}  // namespace

void bind_align(nb::module_& m) {
  m.def("align_pairs", &align_pairs, nb::arg("path"), nb::arg("pairs"), nb::arg("step"), nb::arg("merge"),
        nb::arg("heads"), nb::arg("threads"),
        nb::sig("def align_pairs(path: str, pairs: Sequence[tuple[str, str]], step: str, merge: str, "
                "heads: Sequence[str], threads: int) -> tuple[list[tuple[int, int]], list[tuple[list[str], "
                "list[str], Any, list[tuple[int, int]]]]]"),
        "Heads; then source words, target words, weights and links of each pair.");
  m.def("word_links", &links_between, nb::arg("weights"), nb::arg("merge"),
        nb::sig("def word_links(weights: Array, merge: str) -> list[tuple[int, int]]"),
        "Links of weights [target words, source words].");
}

}  // namespace headwise::python
