// Matrices out of tensors: which axes are rows and which are columns, without a copy.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/spec/gemm.h"

namespace headwise {

/// v [... columns] or [... heads dim] with heads * dim = columns, as [rows columns]: the last axis where it
/// has that size, else the last two. Axes that do not join into two levels of steps are refused.
MatrixView matrix_of(std::string_view op, std::string_view name, const AnyView& v, Index columns);

/// Rows of v once its last axes are `columns` columns.
Index rows_of(std::string_view op, std::string_view name, const AnyView& v, Index columns);

/// Sizes from 0 up whose bytes fit, float dtypes.
void check_gemm_problem(std::string_view op, const GemmProblem& p);

/// Sizes, steps, memory and a float dtype.
void check_matrix_memory(std::string_view op, std::string_view name, const AnyView& v);

}  // namespace headwise
