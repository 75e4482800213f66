// answers_with: what a model gives for texts while single heads are changed or single pairs knocked out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/lab/cut/head_trial.h"
#include "headwise/lab/cut/knock_out.h"

#pragma GCC visibility push(default)
namespace headwise {

struct HeadChanges {
  std::vector<Intervention> heads = {};
  std::vector<Index> patch_rows = {};  // numbers in the rows of each patch, beside `heads`; 0: no patch
  std::vector<HeadPair> pairs = {};    // of one layer; texts run one by one where there are any
};

/// Probabilities [texts labels] of a recogniser, vectors [texts model_dim] of an encoder.
std::vector<std::vector<float>> answers_with(const LabModel& model, std::span<const std::string> texts,
                                             const HeadChanges& changes, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
