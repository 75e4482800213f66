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

/// Heads of a layer of an attention; 0: the model has no such layer.
using HeadsOf = Callable<Index(AttentionPart part, Index layer)>;
/// Refuses heads that are not there, in one sentence.
void check_changes(const HeadChanges& changes, const HeadsOf& heads_of);
/// Changes what the heads of a layer give, [rows heads*dim].
void apply_changes(const HeadChanges& changes, AttentionPart part, Index layer, Index heads,
                   const AnyView& y);

/// Probabilities [texts labels] of a recogniser, vectors [texts model_dim] of an encoder.
std::vector<std::vector<float>> answers_with(const LabModel& model, std::span<const std::string> texts,
                                             const HeadChanges& changes, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
