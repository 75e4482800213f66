// cut_over: one rank's part of a recogniser whose blocks are cut over a tensor team.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>

#include "headwise/distributed/slices.h"
#include "headwise/intent/recognizer/recognizer.h"

namespace headwise {

/// The blocks are this rank's slices of the whole one's, the rest is copied; over a context team alone all
/// is. `teams` outlives it.
inline Recognizer cut_over(const Recognizer& whole, const Teams& teams) {
  RecognizerConfig config = whole.config();
  config.encoder.teams = &teams;
  Recognizer own(std::move(config), whole.tokenizer().vocabulary(), 0, whole.params().dtype());
  const Communicator alone;
  take_slices(whole.params(), own.params(), teams.tensor ? *teams.tensor : alone);
  return own;
}

}  // namespace headwise
