// NumPy's files: the header of a .npy, and the entries of a .npz that lie there as they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/view/array_file.h"

namespace headwise {

/// `where` begins every sentence: "op: path".
FileArray parse_npy(std::span<const std::byte> bytes, std::string_view where);
std::vector<FileArray> parse_npz(std::span<const std::byte> bytes, std::string_view where);

}  // namespace headwise
