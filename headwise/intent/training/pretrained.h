// Pretrained: an encoder from its folder as what a recogniser begins with, and the recipe that tunes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/training/training.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Lives as long as the Start that from_encoder() makes of it.
struct Pretrained {
  RecognizerConfig config;  // the encoder's settings and words, the mean of its rows, chunks of its positions
  Vocabulary vocabulary;
  ParamSet encoder;
};

/// A folder with config.json, model.safetensors and vocab.txt, as TextEncoder reads it: see
/// docs/pretrained.md. Rows of the table beyond the vocabulary are left out.
Pretrained read_pretrained(const std::string& folder);

/// TrainingOptions for a pretrained encoder: few epochs, the encoder slower than what is drawn anew, its
/// lower blocks slower still, bf16 products.
TrainingOptions fine_tuning();

}  // namespace headwise
#pragma GCC visibility pop
