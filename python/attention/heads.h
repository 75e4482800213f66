// Heads by their settings: what hw.attention(head=...) runs with, and the coefficients given beside it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "headwise/spec/backward.h"

namespace headwise::python {

namespace nb = nanobind;

/// What a head says about attention alone: its layouts and kinds, and a scale of its own.
struct NamedHead {
  HeadSpec spec;
  double scale = 0;  // 0: none
  double alpha = 0;  // of entmax; 0: none
  bool learns_alpha = false;
};

/// "gqa:heads=8,kv_heads=2" from the text itself or from hw.Gqa(...).
std::string settings_of(const char* op, nb::handle head);
/// Kept by settings and width: making a head declares its parameters, which a call does not need.
const NamedHead& head_named(const char* op, nb::handle head, Index model_dim);

}  // namespace headwise::python
