// Progress: one moving line on a terminal, plain lines elsewhere: step, loss, rate and the time that is left.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>
#include <string>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// automatic: a bar when the stream is std::cout or std::cerr on a terminal, else lines.
enum class Screen : unsigned char { automatic, bar, lines };

class Progress {
 public:
  /// `out` may be null: nothing is shown. `first`: steps done before this run began.
  Progress(std::ostream* out, Index first, Index total, Screen screen = Screen::automatic);
  /// After a step; `seconds` since the run began. A bar moves at most ten times a second, a line comes every
  /// ten seconds; the last step is always shown.
  void update(Index step, double loss, Index examples, double seconds);
  /// A sentence of its own, the bar out of its way.
  void say(const std::string& sentence);
  /// Ends the moving line.
  void finish();

 private:
  std::ostream* out_;
  Index first_, total_;
  bool bar_;
  double shown_ = -1e9;
  std::size_t wide_ = 0;  // columns of the moving line
};

/// "1:02:03", "4:05".
std::string clock_text(double seconds);

}  // namespace headwise
#pragma GCC visibility pop
