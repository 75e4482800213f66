// TokenModel: a decoder or a translator whose next token is asked while heads are changed or pairs knocked
// out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/lab/cut/answers.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Texts to go on with. targets: of a translator, what is written already, one a text or none. states: of a
/// decoder with cross-attention, what its heads look at, [tokens model_dim] f32.
struct TokenTexts {
  std::vector<std::string> texts = {}, targets = {};
  ConstView states = {};
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual Index heads(AttentionPart part, Index layer) const = 0;
  /// Probabilities of the token behind each text, [texts vocabulary]. `look` sees what the heads of a layer
  /// give before they are changed, rows of all texts one after another.
  using Look = Callable<void(AttentionPart part, Index layer, const AnyView& y)>;
  virtual std::vector<std::vector<float>> answers(const TokenTexts& texts, const HeadChanges& changes,
                                                  const Look* look = nullptr) = 0;
};

/// Whether a path is a translator's folder, or what headwise generate reads.
bool holds_token_model(const std::string& path);
std::unique_ptr<TokenModel> open_token_model(const std::string& path, int threads = 0);

}  // namespace headwise
#pragma GCC visibility pop
