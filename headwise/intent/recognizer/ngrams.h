// Ngrams: for every token a bag of hashed n-grams of pieces and of its word's characters, as rows to add to
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headwise/layers/basic/linear.h"
#include "headwise/text/vocabulary.h"

#pragma GCC visibility push(default)
namespace headwise {

struct NgramOptions {
  Index buckets = 0;                      // rows of the table; 0: no n-grams
  Index pieces = 2;                       // n-grams of 2..pieces pieces that end at the token; 1: none
  Index chars_least = 3, chars_most = 4;  // characters of "<word>" taken together; most 0: none
  double dropout = 0;
  Index columns = 0;  // of a row, then a matrix widens it to the token's; 0: rows are as wide as tokens
  bool operator==(const NgramOptions&) const = default;
};

/// y[t] = sum of the table's rows for the n-grams of t, over the root of their number. What an n-gram is
/// depends on ids and the vocabulary's pieces alone; special pieces such as [CLS] have no characters.
class Ngrams {
 public:
  /// Declares table [buckets dim] under `name`; with options.columns table [buckets columns] and
  /// widen [dim columns].
  Ngrams(ParamSet& params, std::string_view name, const NgramOptions& options, Index dim);

  struct Saved {
    AnyView buckets, offsets;  // i64 [n-grams], i64 [tokens + 1]
    DropoutOptions dropout;
    Linear::Saved widen;
  };
  /// ids in the call's sequences to [tokens dim].
  AnyView forward(std::span<const TokenId> ids, const Vocabulary& vocabulary, Call& call, Saved* saved) const;
  void backward(const AnyView& dy, Call& call, const Saved& saved) const;

  /// Buckets of the tokens of one sequence, token by token; offsets grows by one for each.
  void add_sequence(std::span<const TokenId> ids, const Vocabulary& vocabulary, std::vector<Index>& buckets,
                    std::vector<Index>& offsets) const;

 private:
  NgramOptions options_;
  Index dim_;  // of a row
  Learned table_;
  std::optional<Linear> widen_;
};

}  // namespace headwise
#pragma GCC visibility pop
