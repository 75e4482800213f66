// Embed: token rows out of a table, plus positions and token types, then a norm if asked, and dropout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "headwise/layers/basic/norm_layer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// How a model knows positions: added to the rows (learned, sinusoidal), or inside attention (rope, alibi).
enum class Positions : std::uint8_t { none, learned, sinusoidal, rope, alibi };
inline constexpr std::string_view kPositionNames[] = {"none", "learned", "sinusoidal", "rope", "alibi"};
constexpr std::string_view name_of(Positions p) { return kPositionNames[static_cast<int>(p)]; }

struct EmbedOptions {
  Index vocabulary = 0, model_dim = 0;
  Index max_tokens = 0;  // positions there are, for learned and sinusoidal ones
  Positions positions = Positions::none;
  bool scaled = false;                   // rows times sqrt(model_dim), as Vaswani et al. do
  Index token_types = 0;                 // segments a token may belong to, each with a row added; 0: none
  std::optional<NormOptions> norm = {};  // of the sum, before dropout, as BERT does
  double dropout = 0;
};

class Embed {
 public:
  /// Declares table [vocabulary model_dim] under `name` and, where they are asked for, positions [max_tokens
  /// model_dim], types [token_types model_dim] and norm.
  Embed(ParamSet& params, std::string_view name, const EmbedOptions& options);

  struct Saved {
    AnyView ids, places, types;  // [tokens]
    NormLayer::Saved norm;
    DropoutOptions dropout;
  };
  /// ids and types [tokens], i64 or i32, on the CPU or beside the table, in the call's sequences; token t of
  /// a sequence stands at position t. No types: all tokens are of type 0.
  AnyView forward(const InputView& ids, const InputView& types, Call& call, Saved* saved) const;
  AnyView forward(const InputView& ids, Call& call, Saved* saved) const {
    return forward(ids, {}, call, saved);
  }
  void backward(const InputView& dy, Call& call, const Saved& saved) const;

  const Learned& table() const { return table_; }
  const EmbedOptions& options() const { return options_; }

 private:
  double scale() const;
  void add_rows(const InputView& table, const InputView& ids, const AnyView& y, Call& call) const;
  EmbedOptions options_;
  Learned table_, positions_, types_;
  std::optional<NormLayer> norm_;
  Tensor waves_;  // sinusoidal: [max_tokens model_dim]
};

/// sin(p / 10000^(2i / dim)) in column 2i, cos in column 2i + 1, rounded once: [positions dim].
Tensor sinusoidal_positions(Index positions, Index dim, DType dtype);

/// The position of every row inside its sequence, i64 [rows], in the call's memory: numbers of the CPU,
/// copied where that is a device's.
AnyView positions_of(const Sequences& sequences, Call& call);

/// The slopes of Press et al. 2022, [heads]: 2^(-8 i / n) for a power of two n; otherwise those of the
/// power below, then every other one of the power above.
Tensor alibi_slopes_of(Index heads, DType dtype = DType::f32);

}  // namespace headwise
#pragma GCC visibility pop
