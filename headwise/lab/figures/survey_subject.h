// SurveySubject: any model whose heads are surveyed: its texts as tokens, its maps of weights, its matrices.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/base/threads.h"
#include "headwise/lab/matrix/small_matrix.h"
#include "headwise/layers/basic/block_parts.h"
#include "headwise/text/vocabulary.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SurveyToken {
  TokenId id = 0;
  Index begin = 0, end = 0;  // bytes of the text; equal for tokens that were added
  bool cls = false, sep = false, punctuation = false;
  bool special() const { return begin == end; }
};
struct SurveyTokens : std::vector<SurveyToken> {
  using std::vector<SurveyToken>::vector;
  std::vector<SurveyToken> source = {};  // of a translator's decoder: what its cross heads look at
  bool shortened = false;                // the text has more tokens than were read
  Index number = -1;                     // of the text, where the subject holds what it reads
};

/// What the heads of one layer did on one text of n tokens.
struct LayerMaps {
  Index heads = 0, tokens = 0, keys = 0;
  const float* weights = nullptr;  // [heads tokens keys]
  std::vector<std::vector<double>>
      value_norm;                  // [heads][tokens]: |v_j W_O| of the head; none for mixed heads
  std::vector<double> score_rank;  // [heads]: stable rank of q k^T; none for mixed heads
  const float* slopes = nullptr;   // [heads tokens tokens]: dL/dweight, where run_slopes looks
};

/// W_Q, W_K [dim model_dim], W_V [value_dim model_dim], W_O [model_dim value_dim] of one head.
struct HeadMatrices {
  SmallMatrix q, k, v, out;
};

class SurveySubject {
 public:
  virtual ~SurveySubject() = default;
  virtual Index layers() const = 0;
  virtual Index heads(Index layer) const = 0;
  /// Queries see keys before them alone.
  virtual bool causal() const = 0;
  /// Keys are SurveyTokens::source, not the queries' own tokens.
  virtual bool cross() const { return false; }
  /// At most `most` tokens of a text.
  virtual SurveyTokens read(const std::string& text, Index most) const = 0;
  /// `count` tokens drawn by the seed, twice, with what the model puts around a text.
  virtual SurveyTokens repeated(std::uint64_t seed, Index count) const = 0;
  /// What the heads of one layer did on the texts from `first` on. Every text goes through its layers in
  /// order.
  using Look = std::function<void(Index layer, Index first, std::span<const LayerMaps> maps)>;
  /// Several texts; values: with value_norm and score_rank.
  virtual void run(std::span<const SurveyTokens> texts, bool values, const Look& look) = 0;
  /// The gradient of every weight on one text, layer by layer; false: the model has none. L is the loss of a
  /// recogniser's own answer, of an encoder 1 - cosine between its vector and that of `other`.
  virtual bool run_slopes(const SurveyTokens& text, const SurveyTokens& other, const Look& look) {
    static_cast<void>(text), static_cast<void>(other), static_cast<void>(look);
    return false;
  }
  /// One text through blocks that lack some parts; `look` sees the rows between them.
  virtual void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) = 0;
  /// For work on single heads.
  virtual ThreadPool& pool() = 0;
  /// Empty where a head has no matrices of its own.
  virtual HeadMatrices matrices(Index layer, Index head) const = 0;
  /// W_E^T W_U [model_dim model_dim] over at most 4096 tokens, evenly chosen.
  virtual SmallMatrix vocabulary_product() = 0;
};

/// A recogniser, a BERT-style encoder, a translator, or a decoder. shuffle: its attention matrices with their
/// entries in an order drawn by the seed: the same numbers without what was learnt. part: of a translator,
/// where none is named its encoder; texts of its other parts are a source and a target with a tab between.
std::unique_ptr<SurveySubject> open_subject(const std::string& path, int threads, bool shuffle = false,
                                            std::uint64_t seed = 0, std::optional<AttentionPart> part = {});

/// Entries in an order drawn by the seed.
void shuffle_entries(float* values, Index count, std::uint64_t seed);
bool is_punctuation(std::string_view piece);

}  // namespace headwise
#pragma GCC visibility pop
