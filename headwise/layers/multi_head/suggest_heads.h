// suggest_heads: how many heads a model of a given width should start with, and why, in one sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct HeadsAdvice {
  Index heads = 0, head_dim = 0, kv_heads = 0;
  std::string sentence;
};

/// The divisor of model_dim whose head_dim is nearest 64 (model_dim up to 1024) or 128 (above); of two as
/// near, the larger head_dim. Never a fraction: 512 gives 8, 768 12, 1024 16, 4096 32. Above 8 heads the
/// sentence names what can be shared and what each choice saves.
HeadsAdvice suggest_heads(Index model_dim);

}  // namespace headwise
#pragma GCC visibility pop
