// CutVocabulary: a table of tokens whose rows are cut over a tensor team: token rows, logits and their loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/basic/leaves.h"
#include "headwise/ops/row/cross_entropy.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The table has 8 leaves of equal size: rows behind the last token are there so that it divides, are no
/// classes and learn nothing. 1, 2, 4 and 8 ranks hold whole leaves and give the same bits; f32 or f64.
class CutVocabulary {
 public:
  /// Declares table [rows of this rank, model_dim] under `name`. The teams outlive it, with a tensor team.
  CutVocabulary(ParamSet& params, std::string_view name, Index vocabulary, Index model_dim,
                const Teams& teams);

  /// Rows of the table for ids [tokens], i64 or i32, which every rank gives alike: each row comes from the
  /// rank that has it. And back: dy is whole on every rank.
  AnyView embed(const InputView& ids, Call& call) const;
  void embed_backward(const InputView& ids, const InputView& dy, Call& call) const;

  /// rows [rows model_dim] by this rank's part of the table: logits [rows classes of this rank]. Those of no
  /// token are -inf.
  AnyView logits(const InputView& rows, Call& call) const;
  /// The gradient of `rows`, a sum over the leaves of all ranks, whole on every rank.
  AnyView logits_backward(const InputView& dlogits, const InputView& rows, Call& call) const;

  /// cross_entropy of the logits of all ranks. labels count tokens of the whole vocabulary; dlogits, like
  /// logits, lies there or is logits itself. A leaf's exponentials are summed in blocks of 4,096 classes, the
  /// blocks' sums in double in ascending order: what travels is three numbers a block.
  LossSum loss(const InputView& logits, const InputView& labels, const CrossEntropyOptions& options,
               const AnyView& dlogits, double weight, Call& call) const;

  Index vocabulary() const { return vocabulary_; }
  /// Rows of this rank, of the table of all ranks.
  Slice own() const { return own_; }
  const Learned& table() const { return table_; }

 private:
  struct Block;
  struct Owned;
  Owned owned(const InputView& ids, Call& call) const;
  template <class T>
  LossSum loss_of(const InputView& logits, const InputView& labels, const CrossEntropyOptions& options,
                  const AnyView& dlogits, double weight, Call& call) const;
  std::vector<Block> blocks() const;

  Index vocabulary_, dim_;
  Slice own_;
  const Teams* teams_;
  Learned table_;
};

}  // namespace headwise
#pragma GCC visibility pop
