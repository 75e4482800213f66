// LayerBox: a layer as Python holds it: its parameters, the memory of its steps, what the last forward kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <mutex>
#include <vector>

#include "headwise/layers/transformer/transformer.h"
#include "python/arrays/array.h"
#include "python/arrays/contexts.h"

namespace headwise::python {

/// An array [batch tokens columns], or [tokens columns] with or without offsets, as rows. It points into
/// itself: it stays where it is filled.
struct RowsArray {
  nb::object object;  // keeps the memory alive; empty: not given
  ArrayKind kind;
  AnyView view, rows;  // as it came; [tokens columns]
  Sequences sequences;
  std::vector<Index> offsets;
  const Communicator* team = nullptr;  // who has the other rows

  /// Over a context team of several ranks the rows are this rank's, and the offsets those of all rows.
  void read(const char* op, const char* name, nb::handle h, nb::handle given_offsets, DType dtype,
            const Teams* teams = nullptr);
  bool given() const { return rows.given(); }
};

/// What a forward reads besides its rows; kept for the backward behind it.
struct StepInputs {
  RowsArray x, keys, values;
  nb::object mask_object, source_mask_object;
  MaskSet mask, source_mask;
  bool training = false;
  std::uint64_t seed = 0, step = 0;
  double loss = 0;        // the heads' own, which the forward found
  Index loss_layers = 0;  // in how many layers

  Call call(Context& ctx, StepMemory& memory) const;
  void note_loss(const Call& forward) { loss = forward.loss, loss_layers = forward.loss_layers; }
  /// The call of the backward behind that forward.
  Call call_back(Context& ctx, StepMemory& memory, double loss_weight) const;
};

struct LayerBox {
  LayerBox(DType dtype, std::uint64_t seed, const Teams* with = nullptr) : params(dtype, seed), teams(with) {}
  LayerBox(const LayerBox&) = delete;
  LayerBox& operator=(const LayerBox&) = delete;

  ParamSet params;
  const Teams* teams;       // of `teams_object`; null: none
  nb::object teams_object;  // kept, as layers point into it
  StepMemory memory;
  StepInputs inputs;  // of the last forward
  bool kept = false;  // a backward may follow it
  std::mutex turn;    // callers take turns on a layer

  /// Forgets the last forward.
  void begin();
  void check_kept(const char* op) const;
};

DType read_layer_dtype(const char* op, nb::handle word);
/// The Mask an argument holds; None: none.
MaskSet read_mask_set(const char* op, const char* name, nb::handle mask);
/// An array in the form of `like`, `columns` in its last axis.
MadeArray make_rows(const RowsArray& like, Index columns);

/// parameters(), gradients(), zero_gradients(), torch_state(), load_torch_state(): what every layer has.
void bind_layer_box(nb::module_& m);

}  // namespace headwise::python
