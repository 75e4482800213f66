// A const tensor as an output: with CONST_OUTPUT this must not compile, without it it must.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/buffer.h"
#include "headwise/spec/problem.h"

#ifdef CONST_OUTPUT
using Output = const headwise::Tensor;
#else
using Output = headwise::Tensor;
#endif

headwise::AttentionArgs args_of(const headwise::Tensor& q, Output& out) {
  return {.q = q.view(), .k = q.view(), .v = q.view(), .out = out.view()};
}
