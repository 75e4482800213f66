// What a training refuses of its options before it begins. Private to this folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/training/training.h"

namespace headwise {

void check_options(const TrainingOptions& o);
/// Refuses what asks something of single heads, which lie on different ranks.
void check_cut(const RecognizerConfig& c, const Teams& teams);

}  // namespace headwise
