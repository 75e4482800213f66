// Values: Python numbers, words and lists of numbers as C++ ones, each refusal a sentence that names the
// argument.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/device.h"
#include "headwise/base/index.h"

namespace headwise::python {

namespace nb = nanobind;

/// What was called, for sentences: "attention: dropout is ...".
struct ArgName {
  const char *op, *name;
};

/// "op: name is a <type>; give <need>".
[[noreturn]] void refuse_type(ArgName at, nb::handle h, const char* need);

double read_number(ArgName at, nb::handle h);
Index read_index(ArgName at, nb::handle h);
std::uint64_t read_seed(ArgName at, nb::handle h);
bool read_bool(ArgName at, nb::handle h);
std::string_view read_word(ArgName at, nb::handle h);
/// A NumPy array, torch tensor (int32 or int64, one axis) or sequence of integers.
std::vector<Index> read_indices(ArgName at, nb::handle h);
/// "cpu/online,ref" or a sequence of such names.
std::string read_kernels(ArgName at, nb::handle h);
/// "cpu", "cuda" (the first one), "cuda:1", or what prints so, such as a torch.device.
Device read_device(ArgName at, nb::handle h);

}  // namespace headwise::python
