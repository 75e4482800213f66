// MergedAttention (Zhang et al. 2019): a decoder's cross-attention plus the running mean of its own values.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/multi_head/multi_head.h"

#pragma GCC visibility push(default)
namespace headwise {

/// y = [head(x, source) + mean over tokens 0..t of x W_V] W_O, with one W_V for source and x: a token needs
/// no attention to its own past, only a running sum. Zero source values give the running mean alone.
class MergedAttention {
 public:
  /// Declares what a MultiHead declares, under `name`. The head's values must be as wide as its output.
  MergedAttention(ParamSet& params, std::string_view name, std::string_view head,
                  const MultiHeadOptions& options);

  struct Saved {
    std::optional<HeadRun> run;
    AnyView x;
    Linear::Saved out;
  };
  /// Reads call.source in call.source_sequences under call.source_mask; x in call.sequences.
  AnyView forward(const InputView& x, Call& call, Saved* saved, const Tail& tail = {}) const;
  AnyView backward(const InputView& dy, Call& call, Saved& saved, const InputView& residual = {}) const;

 private:
  MultiHead inner_;
};

/// out[t] = mean of x[0..t] inside every sequence, summed in ascending order in double; out is not x.
void running_mean(const AnyView& x, const Sequences& sequences, const AnyView& out, Context& ctx);
/// dx[t] += sum over u >= t of dout[u] / (u + 1).
void running_mean_backward(const AnyView& dout, const Sequences& sequences, const AnyView& dx, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
