// module: what layers share: the memory of a step, the call around a forward or backward, and small passes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "headwise/base/callable.h"
#include "headwise/base/param.h"
#include "headwise/distributed/order.h"
#include "headwise/layers/basic/block_parts.h"
#include "headwise/ops/attention/plan_shelf.h"
#include "headwise/ops/device/memory.h"
#include "headwise/ops/row/dropout.h"
#include "headwise/spec/mask.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Memory of one step: pieces taken in order and given back in reverse. Kept between steps together with
/// their plans, so that only a step larger than all before it, or of another shape, allocates.
class StepMemory {
 public:
  StepMemory() = default;
  /// Pieces lie on that device.
  explicit StepMemory(Device device) : device_(device) {}
  Device device() const noexcept { return device_; }
  /// The same step's memory on another device, the CPU included: kept with this one and reset with it.
  StepMemory& on(Device device);
  /// Row-major, not cleared.
  AnyView take(DType dtype, std::initializer_list<Index> sizes);
  std::span<std::byte> take_bytes(std::size_t bytes);

  struct Mark {
    std::size_t chunk = 0, used = 0;
    Index pieces = 0;
  };
  Mark mark() const noexcept { return {chunk_, used_, pieces_}; }
  /// Gives back all that was taken since the mark.
  void release(const Mark& m) noexcept { chunk_ = m.chunk, used_ = m.used; }
  /// Gives back everything; what lay in several chunks lies in one from now on.
  void reset();
  std::size_t capacity() const noexcept;
  /// Pieces taken so far, released ones included: what a test counts.
  Index pieces() const noexcept { return pieces_; }
  /// Plans of earlier steps.
  PlanShelf& plans() noexcept { return plans_; }

 private:
  Device device_;
  std::unique_ptr<StepMemory> other_;
  std::vector<DeviceBuffer> chunks_;
  std::size_t chunk_ = 0, used_ = 0;
  Index pieces_ = 0;
  PlanShelf plans_;
};

/// Releases on leaving a scope what was taken inside it.
class Scratch {
 public:
  explicit Scratch(StepMemory& memory) : memory_(memory), mark_(memory.mark()) {}
  ~Scratch() { memory_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  StepMemory& memory_;
  StepMemory::Mark mark_;
};

/// How the rows of an activation [tokens model_dim] form sequences.
struct Sequences {
  Index batch = 1, tokens = 0;     // padded: sequence b owns rows b * tokens ...
  InputView offsets = {};          // [batch + 1] i64, ragged: sequence b owns rows offsets[b]..offsets[b + 1]
  std::optional<Slice> held = {};  // of a context team: the rows this rank has, in the order of all

  bool ragged() const { return offsets.given(); }
  Index count() const { return ragged() ? offsets.size[0] - 1 : batch; }
  Index rows() const { return ragged() ? at(count()) : batch * tokens; }
  Index at(Index b) const {
    return ragged() ? static_cast<const Index*>(offsets.data)[b * offsets.step[0]] : b * tokens;
  }
  Index longest() const;
  /// Rows an activation has here.
  Index held_rows() const { return held ? held->size : rows(); }
};

struct Taps;          // taps.h
class Communicator;   // headwise/distributed/communicator.h
class PackedWeights;  // packed_weights.h

/// Called with a block's number and what its heads give before W_O reads it, [rows heads*value_dim], gates
/// included: changes it in place. Call::running says of which attention.
using HeadEdit = Callable<void(Index block, const AnyView& y)>;

/// One forward, and the backward that follows it: y = layer.forward(x, call, saved), dx =
/// layer.backward(dy, call, saved). Views returned lie in `memory` and live until it is reset or released.
/// `saved` null: no backward follows and nothing is kept. Gradients of parameters are added into their
/// ParamSet.
struct Call {
  Context& ctx;
  StepMemory& memory;
  Sequences sequences = {};  // of x
  MaskSet mask = {};         // of self-attention
  InputView source = {};     // rows a decoder's cross-attention reads, empty: it has none
  Sequences source_sequences = {};
  MaskSet source_mask = {};          // of cross-attention
  AnyView dsource = {};              // like source: backward adds the gradient of source to it, where given
  bool training = false;             // dropout is on; f32 products may run in parts (GemmProblem)
  std::uint64_t seed = 0, step = 0;  // what every draw of this call depends on
  // Heads' own losses (routing balance): each with the weight its head was made with, the mean over layers
  // that have one. A trainer adds `loss` to its own and sets loss_weight to that of the micro-batch.
  double loss = 0;
  Index loss_layers = 0;        // layers in that mean
  double loss_weight = 0;       // of `loss` in the total loss, read by backward; 0: left out
  std::uint32_t next_site = 0;  // dropouts so far: each has draws of its own
  Index head_budget = 0;        // routed heads a token may use (moh); 0: as many as it was made with
  // Single heads; `blocks` of a stack are counted by it, a layer by itself is block 0.
  Index block = 0;                             // the one that runs
  AttentionPart running = AttentionPart::own;  // its attention that runs
  AttentionPart asked = AttentionPart::own;    // whose score biases and gates these are
  Taps* taps = nullptr;                        // weights are copied there, see Taps::of
  InputView score_bias = {};
  AnyView dscore_bias = {};  // [batch heads q kv], 1 repeats: added to the scores of bias_block;
  Index bias_block = 0;      // backward writes its gradient where there is a place
  Index gate_heads = 0;      // heads of the layer that has most, set by a stack; others read the first gates
  const HeadEdit* edit_heads = nullptr;  // changes what heads give, in forwards without a backward
  BlockParts parts = {};                 // of every block, in forwards without a backward
  const RowLook* see_rows = nullptr;     // sees the rows between blocks
  const Communicator* rows_team =
      nullptr;                      // who has the rows besides sequences.held, where a backward follows
  PackedWeights* packed = nullptr;  // of weights that do not change: read by forwards without training
  InputView head_gates = {};        // [blocks heads] floats: W_O reads gate_h times head h; empty: 1
  AnyView dhead_gates =
      {};  // [blocks rows heads] floats: backward writes dL / dgate of every token and head there

  /// A layer's own loss joins the mean.
  void add_loss(double own) { loss += (own - loss) / static_cast<double>(++loss_layers); }
  /// d(total loss) / d(own loss of one layer).
  double loss_gradient() const { return loss_layers ? loss_weight / static_cast<double>(loss_layers) : 0.0; }
  /// Nothing is asked of single heads.
  bool plain() const {
    return !taps && !edit_heads && !score_bias.given() && !head_gates.given() && !dhead_gates.given();
  }
  /// The next dropout of this call; p is 0 outside training.
  DropoutOptions next_dropout(double p);
};

/// What follows a layer in the same pass: y = residual + dropout(layer(x)).
struct Tail {
  InputView residual = {};  // like y, empty: 0
  double dropout = 0;
};

/// x itself where it lies on the memory's device, else a row-major copy of it there.
AnyView to(const InputView& x, StepMemory& memory, Context& ctx);

/// out = a + b, element by element: [rows columns] of one dtype; out may be a or b.
void add(const AnyView& a, const AnyView& b, const AnyView& out, Context& ctx);
/// sum += x for any two float dtypes of one size, row-major, on the CPU.
void add_into(const AnyView& sum, const AnyView& x);
/// to = from, both row-major, on the CPU and of one dtype and size.
void copy_rows(const InputView& from, const AnyView& to);
void fill_zeros(const AnyView& x);

/// Rows [rows columns] as [outer tokens columns]: outer is the batch (ragged: 1). Nothing is copied.
AnyView as_sequences(const AnyView& rows, const Sequences& s);
/// [rows columns] with all steps row-major seen as [rows] of another width.
AnyView as_rows(const AnyView& v, Index columns);

/// "encoder: x is ...; give ...": rows of the right width, as many as the sequences have.
void check_activation(std::string_view layer, const char* name, const AnyView& x, Index columns,
                      const Sequences& s);

}  // namespace headwise
#pragma GCC visibility pop
