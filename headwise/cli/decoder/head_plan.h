// Head plans: a JSON file with one policy text for every kv head of every layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/cache/kv_cache.h"

namespace headwise::cli {

/// "heads": a list of layers, each a list of texts; other keys are passed over. Refused unless it has the
/// shape's layers and kv heads.
std::vector<HeadPolicy> read_head_plan(const std::string& path, const KvShape& shape);

}  // namespace headwise::cli
