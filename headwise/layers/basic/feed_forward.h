// FeedForward: two linear maps with an activation between them, plain (ReLU, GELU) or gated (SwiGLU).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "headwise/layers/basic/linear.h"

#pragma GCC visibility push(default)
namespace headwise {

/// relu, gelu, gelu_tanh: W_2 act(W_1 x + b_1) + b_2. swiglu: W_2 (silu(W_g x) * (W_1 x)).
enum class FeedKind : std::uint8_t { relu, gelu, gelu_tanh, swiglu };
inline constexpr std::string_view kFeedNames[] = {"relu", "gelu", "gelu_tanh", "swiglu"};
constexpr std::string_view name_of(FeedKind k) { return kFeedNames[static_cast<int>(k)]; }

struct FeedOptions {
  FeedKind kind = FeedKind::relu;
  Index model_dim = 0, feed_dim = 0;
  bool bias = true;
  double dropout = 0;  // between the two maps
  double init_scale = 1;
  const Teams* teams = nullptr;  // W_1 is cut by its columns, W_2 by its rows; outlives the layer
};

class FeedForward {
 public:
  /// Declares in, out and, for swiglu, gate under `name`.
  FeedForward(ParamSet& params, std::string_view name, const FeedOptions& options);

  struct Saved {
    Linear::Saved in, gate, out;
    AnyView before, gated;  // relu: its output; swiglu: W_1 x and W_g x, as the activation reads them
    AnyView slope;          // gelu: its derivative at W_1 x, f32 or wider
    DropoutOptions dropout;
  };
  AnyView forward(const InputView& x, Call& call, Saved* saved, const Tail& tail = {}) const;
  AnyView backward(const InputView& dy, Call& call, const Saved& saved, const InputView& residual = {}) const;

 private:
  Activation activation() const;
  FeedOptions options_;
  std::optional<Linear> in_, gate_, out_;
};

}  // namespace headwise
#pragma GCC visibility pop
