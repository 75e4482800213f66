// ArraySubject: weights that any other program computed, surveyed as those of a model are.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/base/context.h"
#include "headwise/lab/figures/survey_subject.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One text, as another program read it. What the pointers name must outlive the subject.
struct TextArrays {
  SurveyTokens tokens;
  std::vector<const float*> weights = {};      // by layer: [heads tokens tokens], rows behind the softmax
  std::vector<const float*> value_norms = {};  // by layer: [heads tokens], |v W_O|; none: not known
};

/// `shuffle` puts the entries of every row in an order drawn by the seed: rows as sharp as they were, that
/// know no place. There are no matrices, no random tokens and no blocks to leave out here.
class ArraySubject final : public SurveySubject {
 public:
  /// Refuses rows that are no weights, in one sentence.
  ArraySubject(const std::vector<TextArrays>& texts, std::vector<Index> heads, bool causal,
               bool shuffle = false, std::uint64_t seed = 0);
  /// What survey_subjects takes as texts: read() finds the arrays by them.
  std::vector<std::string> names() const;

  Index layers() const override { return static_cast<Index>(heads_.size()); }
  Index heads(Index layer) const override { return heads_[static_cast<std::size_t>(layer)]; }
  bool causal() const override { return causal_; }
  SurveyTokens read(const std::string& name, Index most) const override;
  SurveyTokens repeated(std::uint64_t seed, Index count) const override;
  void run(std::span<const SurveyTokens> texts, bool values, const Look& look) override;
  void run_parts(const SurveyTokens& text, BlockParts parts, const RowLook& look) override;
  ThreadPool& pool() override { return ctx_.pool(); }
  HeadMatrices matrices(Index layer, Index head) const override;
  SmallMatrix vocabulary_product() override { return {}; }

 private:
  const std::vector<TextArrays>& texts_;
  std::vector<Index> heads_;
  bool causal_, shuffle_;
  std::uint64_t seed_;
  Context ctx_;
};

}  // namespace headwise
#pragma GCC visibility pop
