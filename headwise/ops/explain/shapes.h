// Shapes: the way of attention's dimensions from x to out, as a line, a text tree, a mermaid flowchart.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/spec/problem.h"

#pragma GCC visibility push(default)
namespace headwise {

/// "f32 q [2 5 4 8] x k [2 7 2 8], v [2 7 2 6] -> out [2 5 4 6]"
std::string shape_summary(const AttentionProblem& problem);
std::string shape_tree(const AttentionProblem& problem);
std::string shape_mermaid(const AttentionProblem& problem);

}  // namespace headwise
#pragma GCC visibility pop
