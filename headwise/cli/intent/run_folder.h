// RunFolder: the name a training writes to, and OUT.run beside it: one trainer at a time, words that must be
// the same, and a clean end.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/error.h"

namespace headwise::cli {

/// Held while it lives: a second trainer of the same name is refused. The system lets go of it when the
/// process ends in any way.
class TrainingLock {
 public:
  /// Beside `out`, as ".OUT.lock".
  explicit TrainingLock(const std::string& out);
  TrainingLock(const TrainingLock&) = delete;
  TrainingLock& operator=(const TrainingLock&) = delete;
  ~TrainingLock();

 private:
  std::string path_;
  int fd_ = -1;
};

/// What one training is asked, as JSON text: the same command has the same. "crc32c" in it is of the data.
class RunFolder {
 public:
  static constexpr const char* kSettings = "settings.json";
  RunFolder(std::string out, std::string settings, bool replace);

  const std::string& path() const { return run_; }
  /// True: the model is there and these words made it of this data. A folder of anything else is refused
  /// before any work. What killed trainers of this name left is deleted.
  bool is_done() const;
  /// The folder, with its words in it; what a run of other words left goes.
  void begin() const;
  /// A run that fails before its first checkpoint leaves nothing: its words would refuse the next ones.
  void end_without_steps() const;
  /// The model stands in its place: the run goes, in one step.
  void end() const;

 private:
  enum class Fit { none, same, other_words, other_data };
  Fit fit_of(const std::string& theirs) const;
  std::string out_, run_, settings_;
  bool replace_;
};

}  // namespace headwise::cli
