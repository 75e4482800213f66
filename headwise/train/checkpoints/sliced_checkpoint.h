// Sliced checkpoints: each rank of a tensor team writes its part; a small file joins them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/model/safetensors.h"
#include "headwise/train/steps/cut_params.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Writes FOLDER/step-N.rank-K.safetensors on every rank of the team, and then, on rank 0, FOLDER/step-N.json
/// with their names and CRCs: its rename is the checkpoint. What several ranks hold is written by the lowest.
/// `words` are those of the joined file. Returns the path of the json file.
std::string save_slices(const std::string& folder, Index step, const Optimizer& mine, const CutParams& cut,
                        const Metadata& words);

/// Makes one file of such a checkpoint: the bytes that a run on one rank writes. A slice that is missing,
/// damaged or of another checkpoint is named, and nothing is written.
void join_checkpoint(const std::string& json, const std::string& out);

/// The json files of a folder, newest first.
std::vector<std::string> sliced_checkpoints(const std::string& folder);
/// Removes a sliced checkpoint: its json file first.
void remove_slices(const std::string& json);

}  // namespace headwise
#pragma GCC visibility pop
