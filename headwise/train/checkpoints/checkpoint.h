// Checkpoints: weights, optimizer and every counter of a run in one safetensors file; resuming gives the bits
// of never stopping.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "headwise/train/steps/cut_params.h"
#include "headwise/train/steps/optimizer.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Where a run stands: integers alone, because every draw is made of a seed and a counter.
struct TrainState {
  Index step = 0;          // optimizer steps done
  std::uint64_t seed = 0;  // of the data's order, dropout and gates
  Index examples = 0;      // taken so far: the epoch and the place in it follow from the size of the data
  double best = std::numeric_limits<double>::infinity();  // judged, for early stops
  Index since_best = 0;                                   // judgements after it
  friend bool operator==(const TrainState&, const TrainState&) = default;
};

/// What must be the same for a checkpoint to be continued; any text.
struct TrainingIdentity {
  std::string config;    // sizes, heads, data: as the program writes it
  std::string numerics;  // numerics_id(ctx)
};

/// Version, ISA level and allowed kernels: runs that share it give the same bits.
std::string numerics_id(const Context& ctx);

/// refuse: a checkpoint of other numerics is no continuation. accept: it is, though not bit for bit.
enum class OtherNumerics : std::uint8_t { refuse, accept };

struct CheckpointOptions {
  Index keep = 2;  // the newest ones; older ones go when a newer one is on the disk
  OtherNumerics other_numerics = OtherNumerics::refuse;
  bool slices = false;  // each rank of a tensor team writes what it holds (sliced_checkpoint.h)
};

/// A folder of files "step-000000000042.safetensors", one writer at a time. A file is written beside its
/// name, brought to the disk and renamed, so that a kill leaves it whole or not there; each tensor and the
/// manifest carry a CRC-32C.
class Checkpoints {
 public:
  /// Makes the folder when it is not there.
  explicit Checkpoints(std::string folder, const CheckpointOptions& options = {});

  /// Returns the file's path.
  std::string save(const Optimizer& optimizer, const TrainState& state, const TrainingIdentity& identity);

  /// The same in slices, on every rank of the team at once.
  std::string save_slices(const Optimizer& mine, const CutParams& cut, const TrainState& state,
                          const TrainingIdentity& identity);

  struct Restored {
    std::string path;
    TrainState state;
    std::vector<std::string> damaged;  // newer files that are not whole, a sentence each
  };
  /// Loads the newest whole checkpoint, all of it or, when it throws, nothing; slices are joined to a file
  /// first; empty when the folder has none. One of another config, optimizer, version or numerics is refused,
  /// and so is a folder in which none is whole.
  std::optional<Restored> restore(Optimizer& optimizer, const TrainingIdentity& identity) const;

  /// Files by step, newest first.
  std::vector<std::string> files() const;
  const std::string& folder() const noexcept { return folder_; }

 private:
  void remove_left_parts() const;
  void remove_old(const std::string& newest) const;
  /// Newer slices become the newest file; a sentence where they cannot.
  void join_newest(std::vector<std::string>& damaged) const;
  std::string folder_;
  CheckpointOptions options_;
};

}  // namespace headwise
#pragma GCC visibility pop
