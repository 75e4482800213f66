#include "python/layers/layer_box.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

#include "headwise/distributed/slices.h"
#include "headwise/layers/transformer/torch_state.h"
#include "headwise/masks/mask.h"
#include "headwise/model/safetensors.h"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"

namespace headwise::python {
namespace {

bool is_packed(const AnyView& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    if (v.size[axis] > 1 && v.step[axis] != step) return false;
    step *= v.size[axis];
  }
  return true;
}

/// The memory of a view as a NumPy array; `owner` keeps it alive.
nb::object as_numpy(const AnyView& v, nb::handle owner) {
  std::size_t sizes[kMaxRank];
  for (int axis = 0; axis < v.rank; ++axis) sizes[axis] = static_cast<std::size_t>(v.size[axis]);
  const nb::dlpack::dtype type = v.dtype == DType::f64   ? nb::dtype<double>()
                                 : v.dtype == DType::f32 ? nb::dtype<float>()
                                                         : nb::dtype<std::uint16_t>();
  const nb::object array =
      nb::cast(nb::ndarray<nb::numpy>(v.data, static_cast<std::size_t>(v.rank), sizes, owner, nullptr, type));
  if (v.dtype == DType::f16) return array.attr("view")("float16");
  if (v.dtype != DType::bf16) return array;
  try {
    return array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  } catch (const nb::python_error&) {
    throw Error(ErrorKind::unsupported,
                "layer: NumPy has no bf16 of its own; install ml_dtypes, or make the layer in f32");
  }
}

void save(const LayerBox& box, const std::string& path) {
  std::vector<NamedTensor> tensors;
  for (const Param& p : box.params.all()) tensors.push_back({p.name, p.value});
  write_safetensors(path, tensors);
}

void load(LayerBox& box, const std::string& path) {
  const Turn turn(box.turn);
  const Safetensors file(path);
  for (const SafetensorsEntry& e : file.entries())
    require(box.params.has(e.name), ErrorKind::bad_argument, "load", path, " holds \"", e.name,
            "\", which the layer has not; load it into a layer of the kind that was saved");
  for (const Param& p : box.params.all()) file.check(p.name, p.value);  // all fit before one is changed
  for (const Param& p : box.params.all()) file.read(p.name, p.value);
}

nb::dict arrays_of(nb::handle self, bool grads) {
  LayerBox& box = *nb::inst_ptr<LayerBox>(self);
  if (grads) box.params.make_grads();
  nb::dict all;
  for (const Param& p : box.params.all()) all[p.name.c_str()] = as_numpy(grads ? p.grad : p.value, self);
  return all;
}

const Communicator& tensor_team(const LayerBox& box) {
  require(box.teams != nullptr && box.teams->tensor != nullptr, ErrorKind::bad_argument, "layer",
          "it has no tensor team; make it with teams=");
  return *box.teams->tensor;
}

void take_whole(LayerBox& box, LayerBox& whole) {
  const Turn turn(box.turn);
  take_slices(whole.params, box.params, tensor_team(box));
}

void join_whole(LayerBox& box, LayerBox& whole, bool gradients) {
  const Communicator& team = tensor_team(box);
  if (gradients) box.params.make_grads(), whole.params.make_grads();
  const Turn turn(box.turn);
  const Flight waiting;
  for (const Param& mine : box.params.all()) {
    const auto& all = whole.params.all();
    const auto to = std::find_if(all.begin(), all.end(), [&](const Param& p) { return p.name == mine.name; });
    require(to != all.end(), ErrorKind::bad_argument, "layer", "whole has no ", mine.name,
            "; make both of one config");
    join_slices(mine.name, gradients ? mine.grad : mine.value, gradients ? to->grad : to->value, team);
  }
}

nb::dict torch_state(const LayerBox& box) {
  nb::dict all;
  for (StateTensor& t : to_torch(box.params)) {
    auto* owned = new Tensor(std::move(t.value));
    const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
    all[t.name.c_str()] = as_numpy(owned->view(), owner);
  }
  return all;
}

void load_torch_state(LayerBox& box, const nb::dict& state) {
  const Turn turn(box.turn);
  from_torch(box.params, [&](const std::string& name) {
    return state.contains(name.c_str())
               ? read_array("load_torch_state", name.c_str(), state[name.c_str()]).view
               : AnyView{};
  });
}

}  // namespace

void RowsArray::read(const char* op, const char* name, nb::handle h, nb::handle given_offsets, DType dtype,
                     const Teams* teams) {
  const Array a = read_array(op, name, h);
  require(a.view.rank == 2 || a.view.rank == 3, ErrorKind::bad_shape, op, name, " is ", a.view,
          "; give [batch tokens columns], or [tokens columns] with offsets");
  require(a.view.dtype == dtype, ErrorKind::bad_dtype, op, name, " is ", a.view, " but the layer holds ",
          dtype, "; convert it or make the layer in its dtype");
  require(is_packed(a.view), ErrorKind::bad_argument, op, name, " is ", a.view,
          " with steps of its own; make it contiguous first");
  object = nb::borrow(h), kind = a.kind, view = a.view;
  const bool padded = a.view.rank == 3;
  const Index columns = a.view.size[a.view.rank - 1];
  rows = AnyView::packed(a.view.data, dtype,
                         {padded ? a.view.size[0] * a.view.size[1] : a.view.size[0], columns});
  sequences = {.batch = padded ? a.view.size[0] : 1, .tokens = a.view.size[padded ? 1 : 0]};
  const bool cut = teams != nullptr && teams->context_ranks() > 1;
  require(!cut || !given_offsets.is_none(), ErrorKind::bad_argument, op, name, " is ", a.view, ", cut over ",
          cut ? teams->context_ranks() : 1,
          " context ranks; give this rank's rows and the offsets of all rows");
  if (given_offsets.is_none()) return;
  require(!padded, ErrorKind::bad_shape, op, name, " is ", a.view,
          " and has offsets; offsets go with [tokens columns]");
  offsets = read_indices({op, "offsets"}, given_offsets);
  if (cut && !offsets.empty()) {
    sequences.held = slice_of(offsets.back(), teams->context->rank(), teams->context->ranks());
    team = teams->context;
    require(sequences.held->size == rows.size[0], ErrorKind::bad_shape, op, name, " has ", rows.size[0],
            " rows; of ", offsets.back(), " rows rank ", teams->context->rank(), " has ",
            sequences.held->size, ", from ", sequences.held->begin, " on");
  }
  require(!offsets.empty() && offsets.front() == 0 && (cut || offsets.back() == rows.size[0]),
          ErrorKind::bad_shape, op, "offsets go from ", offsets.empty() ? 0 : offsets.front(), " to ",
          offsets.empty() ? 0 : offsets.back(), " but ", name, " has ", rows.size[0], " rows; give 0 to ",
          rows.size[0]);
  sequences.offsets = AnyView::packed(offsets.data(), DType::i64, {static_cast<Index>(offsets.size())});
}

Call StepInputs::call(Context& ctx, StepMemory& memory) const {
  return {.ctx = ctx,
          .memory = memory,
          .sequences = x.sequences,
          .mask = mask,
          .source = keys.rows,
          .source_sequences = keys.sequences,
          .source_mask = source_mask,
          .training = training,
          .seed = seed,
          .step = step,
          .rows_team = x.team};
}

Call StepInputs::call_back(Context& ctx, StepMemory& memory, double loss_weight) const {
  Call c = call(ctx, memory);
  c.loss = loss, c.loss_layers = loss_layers, c.loss_weight = loss_weight;
  return c;
}

void LayerBox::begin() {
  memory.reset();
  kept = false;
  inputs.x = inputs.keys = inputs.values = {};
  inputs.mask_object = inputs.source_mask_object = {};
  inputs.mask = inputs.source_mask = {};
  inputs.loss = 0, inputs.loss_layers = 0;
}

void LayerBox::check_kept(const char* op) const {
  require(kept, ErrorKind::bad_argument, op,
          "there is no forward to differentiate; call forward first, a call "
          "of the layer itself keeps nothing");
}

DType read_layer_dtype(const char* op, nb::handle word) {
  const std::string_view name = read_word({op, "dtype"}, word);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    if (name == name_of(dtype)) return dtype;
  throw Error(ErrorKind::bad_dtype, text(op, ": dtype is \"", name, "\"; give f32, bf16, f16 or f64"));
}

MaskSet read_mask_set(const char* op, const char* name, nb::handle mask) {
  if (mask.is_none()) return {};
  if (!nb::isinstance<Mask>(mask)) refuse_type({op, name}, mask, "a Mask or None");
  return nb::inst_ptr<Mask>(mask)->set();
}

MadeArray make_rows(const RowsArray& like, Index columns) {
  std::vector<Index> sizes(like.view.size, like.view.size + like.view.rank);
  sizes.back() = columns;
  return make_array(like.kind, like.object, like.view.dtype, sizes);
}

void bind_layer_box(nb::module_& m) {
  nb::class_<LayerBox>(m, "Layer", "What every layer has: parameters and their gradients by name.")
      .def(
          "parameters", [](nb::handle self) { return arrays_of(self, false); },
          nb::sig("def parameters(self) -> dict[str, Array]"),
          "Name to NumPy array: the parameters themselves, writable in place.")
      .def(
          "gradients", [](nb::handle self) { return arrays_of(self, true); },
          nb::sig("def gradients(self) -> dict[str, Array]"), "Name to NumPy array: what backward adds to.")
      .def(
          "zero_gradients", [](LayerBox& box) { box.params.zero_grads(); }, "Sets every gradient to 0.")
      .def_prop_ro(
          "loss", [](const LayerBox& box) { return box.inputs.loss; }, nb::sig("def loss(self) -> float"),
          "What the heads of the last call add to the loss: moh's balance times the head's weight, the mean "
          "over layers; 0.0 where no head has one. backward counts it.")
      .def("save", &save, nb::arg("path"), nb::sig("def save(self, path: str) -> None"),
           "Writes the parameters by name as one safetensors file, whole or not at all.")
      .def("load", &load, nb::arg("path"), nb::sig("def load(self, path: str) -> None"),
           "Reads such a file: the same names, sizes and dtype.")
      .def("take_slices", &take_whole, nb::arg("whole"),
           nb::sig("def take_slices(self, whole: Layer) -> None"),
           "Copies this rank's slices of the parameters of `whole`, the same layer made without teams.")
      .def("join_slices", &join_whole, nb::arg("whole"), nb::kw_only(), nb::arg("gradients") = false,
           nb::sig("def join_slices(self, whole: Layer, *, gradients: bool = False) -> None"),
           "The way back, on every rank: `whole` gets the slices of all tensor ranks, values or gradients.")
      .def("torch_state", &torch_state, nb::sig("def torch_state(self) -> dict[str, Array]"),
           "A copy of the parameters under the names of torch's module of the same kind.")
      .def("load_torch_state", &load_torch_state, nb::arg("state"),
           nb::sig("def load_torch_state(self, state: dict[str, Array]) -> None"),
           "Reads the state_dict of torch's module of the same kind.");
}

}  // namespace headwise::python
