// Trainer: the loop of a run over any model: micro-batches, step, log, checkpoint, early stop, a clean end on
// Ctrl-C.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "headwise/base/callable.h"
#include "headwise/distributed/communicator.h"
#include "headwise/train/checkpoints/checkpoint.h"
#include "headwise/train/progress.h"
#include "headwise/train/steps/cut_params.h"
#include "headwise/train/steps/schedule.h"

#pragma GCC visibility push(default)
namespace headwise {

struct LateLoss;  // late_loss.h

/// Some of a step's examples, small enough to be computed at once.
struct MicroBatch {
  Index step = 0;                        // of the run, from 0
  Index number = 0;                      // in the step, from 0: the order in which gradients are added
  std::span<const Index> examples = {};  // which ones
  std::uint64_t seed = 0;    // of its own draws (dropout): from the run's seed, step and number alone
  double weight = 1;         // its part of the step's loss: what its gradient is multiplied by
  LateLoss* late = nullptr;  // where parameters lie on a device: losses may be added there
};
/// Forward and backward: adds weight times the gradient of its mean loss to the parameters' gradients and
/// returns that mean loss, or what `late` does not hold of it.
using Learn = Callable<double(const MicroBatch&)>;
/// The loss on data that is not learnt from; it must not change parameters.
using Judge = Callable<double()>;

struct TrainerOptions {
  Index steps = 0;
  Index micro_rows = 1, micro_batches = 1;  // a step has micro_rows * micro_batches examples
  Schedule rate = Schedule::constant(1e-3);
  /// Gradients of micro-batches are added as a tree, over the ranks of `data` where it is given:
  /// micro_batches, a power of two up to 64, is a multiple of them. Every rank reads all data and has the
  /// same model; each keeps its part of the optimizer's state (Optimizer::share); rank 0 alone writes.
  bool tree = false;
  const Communicator* data = nullptr;
  /// Parameters are slices of a tensor team, whose ranks learn from the same examples; checkpoints hold whole
  /// ones, so they go on over any ranks.
  const CutParams* cut = nullptr;
  /// Ranks that share the tokens of each example and learn the same gradients; the first one writes.
  const Communicator* context = nullptr;
  double clip = 0;  // the largest norm; 0: any
  std::uint64_t seed = 0;
  std::string config = {};  // what a checkpoint must share: the model's and the data's own text

  std::string folder = {};  // of checkpoints; "": none
  Index save_every = 0;     // steps; 0: at the end alone
  CheckpointOptions checkpoints = {};

  Index judge_every = 0;  // steps; 0: never
  Index patience = 0;     // judgements without a better loss before it stops; 0: never
  double seconds = 0;     // of one call of run before it stops early; 0: no limit

  std::string log = {};         // path of a .csv or .jsonl; "": none
  std::ostream* out = nullptr;  // where progress is shown; null: nowhere
  Screen screen = Screen::automatic;
};

enum class Ending : std::uint8_t { finished, early, interrupted };

struct TrainResult {
  Ending ending = Ending::finished;
  Index step = 0;
  double loss = 0;         // of the last step
  double best = 0;         // judged; infinity without judgements
  std::string checkpoint;  // the last one saved or resumed from; "": none
};

class ExampleOrder;
class GradTree;

class Trainer {
 public:
  /// `examples` is the size of the data; an empty set is refused. The optimizer's parameters learn; with
  /// `masters` the image computes and they are its masters' (MasterWeights::params).
  Trainer(Optimizer& optimizer, Index examples, TrainerOptions options, Context& ctx,
          MasterWeights* masters = nullptr);

  /// From the newest whole checkpoint in the folder, or from the start. A loss or a gradient that is not
  /// finite throws with the step, the first bad tensor and the last good checkpoint.
  TrainResult run(const Learn& learn, const Judge& judge = {});

 private:
  TrainingIdentity identity() const;
  void agree_on(Index first) const;
  bool writes() const {
    return (!options_.data || options_.data->rank() == 0) &&
           (!options_.cut || options_.cut->team().rank() == 0) && first_of_context();
  }
  bool first_of_context() const { return !options_.context || options_.context->rank() == 0; }
  bool alone() const { return !options_.data && !options_.cut && !options_.context; }
  /// Those of the data, tensor and context team that there are.
  std::vector<const Communicator*> teams() const;
  std::optional<Checkpoints::Restored> restore(const Checkpoints& kept);
  std::vector<std::string> resume(const Checkpoints& kept, TrainState& state, TrainResult& result);
  void clear_grads() const;
  std::string words_of(const TrainResult& r, bool tired, bool keeps) const;
  std::string save(Checkpoints& kept, const TrainState& state);
  double norm() const;
  enum class Wish : std::uint8_t { none, interrupted, late };
  static Wish interruption();
  /// A step whose figures may still be on their way.
  struct Done {
    Index step = 0, examples = 0;  // after it; while it is taken: its own number
    double rate = 0, loss = 0, norm = 0;
    Index ticket = -1;                // of DeviceSteps::read
    std::vector<double> shares = {};  // of the late losses
  };
  Wish hear_all(Wish wish, Done& done) const;
  void learn_step(const Learn& learn, ExampleOrder& order, TrainState& state, GradTree* tree, Done& done);
  /// Refuses a figure of a step that is not finite.
  using Finite = Callable<void(std::string_view what, double value, Index step)>;
  void take_step(Done& done, const Finite& require_finite);
  [[noreturn]] void refuse(std::string_view what, double value, Index step,
                           const std::string& checkpoint) const;
  void read_figures(Done& done) const;

  Optimizer& optimizer_;
  Index examples_;
  TrainerOptions options_;
  Context& ctx_;
  MasterWeights* masters_;
};

}  // namespace headwise
#pragma GCC visibility pop
