// StackSubject: what subjects share whose heads stand in blocks of MultiHead: their matrices and maps.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/lab/figures/score_rank.h"
#include "headwise/lab/figures/survey_subject.h"
#include "headwise/layers/multi_head/taps.h"

namespace headwise {

/// A number of a stream that the seed and i decide.
std::uint32_t survey_draw(std::uint64_t seed, Index i);
/// `count` rows or columns of a matrix from `first` on.
SmallMatrix rows_of(const ConstView& w, Index first, Index count);
SmallMatrix columns_of(const ConstView& w, Index first, Index count);
SmallMatrix gram_of(const SmallMatrix& a);
/// in^T out over at most 4096 rows, evenly chosen.
SmallMatrix product_over(const ConstView& in, const ConstView& out, ThreadPool& pool);

class StackSubject : public SurveySubject {
 public:
  explicit StackSubject(int threads) : session_({.threads = threads}) {}
  Index layers() const override { return static_cast<Index>(heads_.size()); }
  Index heads(Index layer) const override { return heads_[static_cast<std::size_t>(layer)]; }
  bool causal() const override { return false; }
  ThreadPool& pool() override { return session_.ctx.pool(); }
  HeadMatrices matrices(Index layer, Index head) const override;

 protected:
  virtual const MultiHead& attention(Index layer) const = 0;
  /// Counts heads and shuffles their matrices, once the model is there.
  void open(Index layers, bool shuffle, std::uint64_t seed);
  /// Every head has rows of q, k and v and columns of W_O of its own, or of its group.
  bool plain(Index layer) const;
  /// Gradients of weights can be had of all layers.
  bool has_slopes() const;
  /// dL/dA_ij = dL/do_i . v_j, [heads tokens tokens].
  std::vector<float> weight_slopes(const Tap& t) const;
  /// Of one layer, one tap a text.
  std::vector<LayerMaps> maps_of(std::span<Tap> taps);
  /// What a forward over `texts` texts kept, layer by layer.
  void show(Taps& taps, std::size_t texts, const Look& look);

  Session session_;

 private:
  std::vector<Index> heads_;
  std::map<std::pair<Index, Index>, RowNorms> out_norms_;
};

/// One attention of a translator.
std::unique_ptr<SurveySubject> open_translator(const std::string& folder, int threads, bool shuffle,
                                               std::uint64_t seed, AttentionPart part);

}  // namespace headwise
