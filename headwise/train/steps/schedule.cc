#include "headwise/train/steps/schedule.h"

#include <cmath>
#include <numbers>

#include "headwise/base/error.h"

namespace headwise {

Schedule::Schedule(Kind kind, double peak, double low, Index warm_up, Index total)
    : kind_(kind), peak_(peak), low_(low), warm_up_(warm_up), total_(total) {
  require(std::isfinite(peak) && peak >= 0, ErrorKind::bad_argument, "schedule", "the peak is ", peak,
          "; give a finite number from 0 up");
  require(std::isfinite(low) && low >= 0 && low <= peak, ErrorKind::bad_argument, "schedule", "low is ", low,
          "; give a number from 0 to the peak (", peak, ")");
  require(warm_up >= 0, ErrorKind::bad_argument, "schedule", "the warm-up has ", warm_up,
          " steps; give 0 or more");
  const bool ends = kind == Kind::cosine || kind == Kind::linear;
  require(!ends || total > warm_up, ErrorKind::bad_argument, "schedule", "total is ", total,
          " steps; it must be more than the warm-up (", warm_up, ")");
}

Schedule Schedule::constant(double peak, Index warm_up) { return {Kind::constant, peak, 0, warm_up, 0}; }
Schedule Schedule::cosine(double peak, Index warm_up, Index total, double low) {
  return {Kind::cosine, peak, low, warm_up, total};
}
Schedule Schedule::linear(double peak, Index warm_up, Index total, double low) {
  return {Kind::linear, peak, low, warm_up, total};
}
Schedule Schedule::inverse_sqrt(double peak, Index warm_up) {
  return {Kind::inverse_sqrt, peak, 0, warm_up, 0};
}

double Schedule::at(Index step) const {
  require(step >= 0, ErrorKind::bad_argument, "schedule", "step is ", step, "; steps count from 0");
  const double t = static_cast<double>(step), w = static_cast<double>(warm_up_);
  if (step < warm_up_) return peak_ * (t + 1) / w;
  const double p = std::fmin(1.0, (t - w) / static_cast<double>(total_ - warm_up_));
  switch (kind_) {
    case Kind::constant: return peak_;
    case Kind::cosine: return low_ + (peak_ - low_) * 0.5 * (1 + std::cos(std::numbers::pi * p));
    case Kind::linear: return peak_ + (low_ - peak_) * p;
    case Kind::inverse_sqrt: return peak_ * std::sqrt(std::fmax(1.0, w) / (t + 1));
  }
  return peak_;
}

std::string Schedule::describe() const {
  constexpr const char* kNames[] = {"constant", "cosine", "linear", "inverse_sqrt"};
  std::string out = text(kNames[static_cast<int>(kind_)], " peak=", peak_, " warm_up=", warm_up_);
  if (kind_ == Kind::cosine || kind_ == Kind::linear) out += text(" total=", total_, " low=", low_);
  return out;
}

}  // namespace headwise
