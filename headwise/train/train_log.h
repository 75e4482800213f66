// TrainLog: one row a step as CSV or JSON lines, whole after a crash and without doubles after a resume.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct LogRow {
  Index step = 0, examples = 0;
  double loss = 0, rate = 0, norm = 0, seconds = 0;
  std::optional<double> judged = {};  // the validation loss, on steps that have one
};

class TrainLog {
 public:
  /// ".csv" or ".jsonl" by the path's end; "" keeps nothing. Rows of steps after `first` are dropped: they
  /// will be run again.
  TrainLog(std::string path, Index first);
  void write(const LogRow& row);

 private:
  std::string path_;
  bool json_ = false;
};

}  // namespace headwise
#pragma GCC visibility pop
