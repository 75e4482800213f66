// hw.Recognizer's part of the Python module; a build without ICU refuses it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

namespace headwise::python {

void bind_recognizer(nanobind::module_& m);

}  // namespace headwise::python
