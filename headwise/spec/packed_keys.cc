// The order of packed keys in words.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/spec/packed_keys.h"

#include <ostream>

namespace headwise {

std::ostream& operator<<(std::ostream& out, const KeyOrder& o) {
  out << "[kv/" << o.group << "][dim";
  if (o.columns > 1) out << "/" << o.columns;
  out << "][" << o.group << "]";
  return o.columns > 1 ? out << "[" << o.columns << "]" : out;
}

}  // namespace headwise
