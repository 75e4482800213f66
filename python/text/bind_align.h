// hw.align's part of the Python module.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

namespace headwise::python {

void bind_align(nanobind::module_& m);

}  // namespace headwise::python
