#include "headwise/train/progress.h"

#include <unistd.h>

#include <cmath>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "headwise/base/error.h"

namespace headwise {
namespace {

bool on_terminal(const std::ostream* out) {
  if (out == &std::cout) return ::isatty(STDOUT_FILENO) == 1;
  if (out == &std::cerr || out == &std::clog) return ::isatty(STDERR_FILENO) == 1;
  return false;
}

std::string fixed(double x, int digits) {
  std::ostringstream s;
  s.imbue(std::locale::classic());
  s << std::fixed << std::setprecision(digits) << x;
  return s.str();
}

}  // namespace

std::string clock_text(double seconds) {
  if (!(seconds >= 0) || seconds > 3.6e8) return "-";
  const auto all = static_cast<Index>(std::llround(seconds));
  const auto two = [](Index n) { return text(n < 10 ? "0" : "", n); };
  const Index hours = all / 3600, minutes = all / 60 % 60;
  return hours ? text(hours, ':', two(minutes), ':', two(all % 60)) : text(minutes, ':', two(all % 60));
}

Progress::Progress(std::ostream* out, Index first, Index total, Screen screen)
    : out_(out),
      first_(first),
      total_(total),
      bar_(screen == Screen::bar || (screen == Screen::automatic && on_terminal(out))) {}

void Progress::update(Index step, double loss, Index examples, double seconds) {
  const bool last = step >= total_;
  if (!out_ || (!last && seconds - shown_ < (bar_ ? 0.1 : 10.0))) return;
  shown_ = seconds;
  const double done = static_cast<double>(step - first_);
  const double rate = seconds > 0 ? static_cast<double>(examples) / seconds : 0;
  const double left = done > 0 ? seconds / done * static_cast<double>(total_ - step) : -1;
  std::string line = text("step ", step, '/', total_);
  if (bar_) {
    constexpr Index kCells = 24;
    const Index full = total_ ? step * kCells / total_ : kCells;
    line += " [";
    for (Index i = 0; i < kCells; ++i) line += i < full ? '=' : i == full ? '>' : ' ';
    line += ']';
  }
  line += text("  loss ", fixed(loss, 4), "  ", fixed(rate, rate < 100 ? 1 : 0), " examples/s  ",
               last ? "took " : "left ", clock_text(last ? seconds : left));
  if (!bar_) {
    *out_ << line << '\n' << std::flush;
    return;
  }
  const std::size_t width = line.size();
  if (width < wide_) line.append(wide_ - width, ' ');
  wide_ = width;
  *out_ << '\r' << line << std::flush;
}

void Progress::say(const std::string& sentence) {
  if (!out_) return;
  finish();
  *out_ << sentence << '\n' << std::flush;
}

void Progress::finish() {
  if (out_ && wide_) *out_ << '\n' << std::flush;
  wide_ = 0;
}

}  // namespace headwise
