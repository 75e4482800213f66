// BackwardInputs: everything one run of gradients brings, as a kernel for every mask, term and layout reads
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/run_inputs.h"
#include "headwise/spec/backward.h"

namespace headwise::cuda {

struct BackwardInputs {
  RunInputs in;
  HeadsView dout, dq, dk, dv;
  double* delta;  // [batch heads q]: dout . out of each row
  void *dbias, *dsinks, *dgate;
  DType dbias_dtype, dsinks_dtype, dgate_dtype;
  Index dbias_size[4], dbias_step[4], dsinks_step, dgate_step[3];
};

/// Writes what no kernel of BackwardInputs can read, or the gradients beside `takes` that are asked.
void backward_refused(const BackwardProblem& p, const GradientSpec& takes, const char* takes_words,
                      char (&why)[kSentenceBytes]);

/// gather_inputs, the gradients' views, and launches that write delta and, where asked, dsinks.
Status gather_backward(const AttentionProblem& p, const BackwardArgs& a, StreamState& state,
                       BackwardInputs& f);

}  // namespace headwise::cuda
