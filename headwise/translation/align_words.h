// align_words: which word is whose translation, read from the cross-attention of a translator that is given
// both sentences.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/translation/links.h"
#include "headwise/translation/translator.h"
#include "headwise/translation/word_split.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SentencePair {
  std::string source, target;
};
/// Lines with a tab or " ||| " between a sentence and its translation.
std::vector<SentencePair> parse_sentence_pairs(std::string_view text, std::string_view where);

/// Which step of the decoder speaks for a target word. writes: the one that predicts its pieces. reads: the
/// one after it, whose newest token the piece is (Chen et al. 2020).
enum class StepRow : std::uint8_t { writes, reads };
inline constexpr std::string_view kStepNames[] = {"writes", "reads"};
StepRow parse_step(std::string_view name);

/// A head of the decoder's cross-attention.
struct LayerHead {
  Index layer = 0, head = 0;
  bool operator==(const LayerHead&) const = default;
};
/// "1.3": layer 1, head 3.
LayerHead parse_cross_head(std::string_view text);

/// Weights between words: [heads, target words, source words]. A target word's row is the mean of its pieces'
/// rows; a source word's column the sum of its pieces' columns. What goes to the source's end is in no
/// column.
struct WordWeights {
  std::vector<TextSpan> source_words, target_words;
  std::vector<LayerHead> heads;
  std::vector<float> weights;

  std::span<const float> of(std::size_t head) const;
  /// The mean of some heads, all of them where none is named; a head that is not there is refused.
  std::vector<float> mean(std::span<const LayerHead> wanted) const;
  Index sources() const { return static_cast<Index>(source_words.size()); }
  Index targets() const { return static_cast<Index>(target_words.size()); }
};
std::vector<WordWeights> word_weights(const Translator& model, std::span<const SentencePair> pairs,
                                      StepRow step, Session& session);

/// How weights become links. `shares`: see shares_of.
struct LinkRules {
  Merge merge = Merge::grow_diag;
  bool shares = false;
};
/// The links of weights [targets, sources]. `back`, weights [sources, targets] of a translator of the other
/// direction, says which target word each source word has; without it the same weights do.
WordLinks links_of(std::span<const float> weights, Index targets, Index sources, const LinkRules& rules,
                   std::span<const float> back = {});

/// WordLinks of every pair, by the mean of the heads and by each head.
struct HeadLinks {
  std::optional<LayerHead> head;  // none: the merged ones
  std::vector<WordLinks> pairs;
  LinkScore score = {};  // where there is a gold
};
struct AlignOptions {
  StepRow step = StepRow::writes;
  LinkRules rules = {};
  std::vector<LayerHead> heads = {};  // that are merged; empty: all
  // Of a translator of the other direction, pair by pair as turned_pairs has them; empty: there is none.
  std::span<const WordWeights> back = {};
  std::vector<LayerHead> back_heads = {};  // whose mean is taken; empty: all
};
/// Translation and sentence: the pairs of the other direction.
std::vector<SentencePair> turned_pairs(std::span<const SentencePair> pairs);
/// The merged links, then those of every head. With a gold only its pairs are judged; a gold of pairs or
/// words that are not there is refused.
std::vector<HeadLinks> align_words(std::span<const WordWeights> weights, const AlignOptions& options,
                                   std::span<const GoldPair> gold);

}  // namespace headwise
#pragma GCC visibility pop
