// PlantedHead: a designed head: its scores towards tokens of a class begin higher, by a bias that is learned.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/intent/recognizer/chunks.h"
#include "headwise/layers/transformer/transformer.h"

#pragma GCC visibility push(default)
namespace headwise {

class RoleBook;

/// `number:0` (head 0 of the first layer) or `number:1.0` (of the second) with the words of the book's class,
/// as RecognizerConfig::planted holds them: `1.0 class number: @digits | one | ...`. A model folder is whole
/// without the book.
std::string planted_text(std::string_view request, const RoleBook& book);

class PlantedHead {
 public:
  /// Declares planted.bias [1]; layers or heads that are not there are refused. Which tokens are of the class
  /// is decided piece by piece of the vocabulary.
  PlantedHead(ParamSet& params, std::string_view planted, const Vocabulary& vocabulary,
              const Transformer& encoder);

  struct Saved {
    AnyView slope;  // of the bias, like call.score_bias
  };
  /// score of (query, key) += bias where the key is of the class, or [CLS] of a chunk that has none.
  void forward(const TextBatch& batch, Call& call, Saved* saved) const;
  /// After the encoder's backward.
  void backward(const TextBatch& batch, const Saved& saved) const;

  Index layer() const { return layer_; }
  Index head() const { return head_; }

 private:
  template <class F>
  void each_entry(const TextBatch& batch, F&& f) const;

  Index layer_ = 0, head_ = 0, maps_ = 0, map_ = 0;
  std::vector<bool> members_;  // by token
  Learned bias_;
};

}  // namespace headwise
#pragma GCC visibility pop
