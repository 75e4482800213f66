// Attention maps from arrays: weights [layers heads queries keys], or queries and keys from which they come.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/view/array_file.h"
#include "headwise/view/attention_maps.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The arrays of a file by their names; docs/viewer.md lists them. `tokens` are used where the file has none.
/// The maps read the file when a row is asked for, so it must live as long as they do.
std::vector<AttentionMaps> maps_of_arrays(const ArrayFile& file, const std::vector<std::string>& tokens);

}  // namespace headwise
#pragma GCC visibility pop
