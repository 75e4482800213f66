// LongFlight: work without the GIL that Ctrl-C ends.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "headwise/base/caller_watch.h"
#include "python/arrays/contexts.h"

namespace headwise::python {

/// A Flight that looks at Python's signals every 50 ms, between two tasks of a pool. Where a handler raises,
/// the work ends early, and end() throws what was raised.
class LongFlight {
 public:
  LongFlight();
  /// Takes the GIL back.
  void end();

 private:
  std::optional<Flight> flight_;
  CallerWatch watch_;
};

}  // namespace headwise::python
