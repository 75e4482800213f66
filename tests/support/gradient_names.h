// The names of all gradients, as sentences list them, out of the list of terms.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/spec/terms.h"

namespace headwise::test {

/// "dq, dk, dv, dbias, ..."
inline std::string gradient_names() {
  std::string names;
  for (const Gradient& g : kGradients) names += (names.empty() ? "" : ", ") + std::string(g.name);
  return names;
}

}  // namespace headwise::test
