// hw.linear and hw.PackedWeight: projections.
#include <algorithm>
#include <vector>

#include "headwise/ops/projection/projection.h"
#include "python/arrays/array.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/values.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "linear";

Activation read_activation(nb::handle h) {
  if (h.is_none()) return Activation::none;
  const std::string_view word = read_word({kOp, "activation"}, h);
  const auto* found = std::find(std::begin(kActivationNames), std::end(kActivationNames), word);
  require(found != std::end(kActivationNames), ErrorKind::bad_argument, kOp, "activation is \"", word,
          "\"; give relu, gelu, gelu_tanh, silu, sigmoid or None");
  return static_cast<Activation>(found - std::begin(kActivationNames));
}

AnyView read_optional(const char* name, nb::handle h) {
  return h.is_none() ? AnyView() : read_array(kOp, name, h).view;
}

nb::object linear(nb::handle x, nb::handle weight, nb::handle bias, nb::handle activation,
                  nb::handle residual, nb::handle out, nb::handle ctx) {
  const Array from = read_array(kOp, "x", x);
  ProjectionArgs args;
  args.x = from.view;
  if (nb::isinstance<PackedMatrix>(weight)) {
    args.packed = nb::inst_ptr<PackedMatrix>(weight);
  } else {
    const Array w = read_array(kOp, "weight", weight);
    if (!(w.kind == from.kind)) refuse_kinds(kOp, {"x", x}, {"weight", weight});
    args.weight = w.view;
    require(w.view.rank == 2, ErrorKind::bad_shape, kOp, "weight is ", w.view, "; give [out in]");
  }
  args.bias = read_optional("bias", bias), args.residual = read_optional("residual", residual);
  const Index in = args.packed ? args.packed->in() : args.weight.size[1];
  nb::object made;
  if (out.is_none()) {
    // [... in] gives [... out], [... heads dim] too.
    const AnyView& v = from.view;
    const bool split =
        v.rank >= 2 && v.size[v.rank - 1] != in && v.size[v.rank - 2] * v.size[v.rank - 1] == in;
    std::vector<Index> sizes(v.size, v.size + std::max(0, v.rank - (split ? 2 : 1)));
    sizes.push_back(args.packed ? args.packed->out() : args.weight.size[0]);
    MadeArray fresh = make_array(from.kind, x, v.dtype, sizes);
    made = std::move(fresh.object), args.out = fresh.view;
  } else {
    const Array to = read_array(kOp, "out", out);
    if (!(to.kind == from.kind)) refuse_kinds(kOp, {"x", x}, {"out", out});
    require(to.writable, ErrorKind::bad_argument, kOp, "out is read-only; give a writable array");
    made = nb::borrow(out), args.out = to.view;
  }
  const Activation act = read_activation(activation);
  run_alone(context_of(kOp, ctx), [&](Context& c) { projection(args, act, c); });
  return made;
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PackedMatrix>(
      m, "PackedWeight",
      "A weight [out in] in the layout of the kernel that reads it, packed once for many calls "
      "of hw.linear with x of the same dtype.")
      .def(
          "__init__",
          [](PackedMatrix* self, nb::handle weight, nb::handle ctx) {
            const Array w = read_array("PackedWeight", "weight", weight);
            run_alone(context_of("PackedWeight", ctx),
                      [&](Context& c) { new (self) PackedMatrix(pack_matrix(w.view, w.view.dtype, c)); });
          },
          nb::arg("weight"), nb::kw_only(), nb::arg("ctx") = nb::none(),
          nb::sig("def __init__(self, weight: Array, *, ctx: Context | None = None) -> None"))
      .def_prop_ro(
          "shape", [](const PackedMatrix& p) { return nb::make_tuple(p.out(), p.in()); },
          nb::sig("def shape(self) -> tuple[int, int]"))
      .def_prop_ro("nbytes", &PackedMatrix::bytes);
  m.def(
      "linear", &linear, nb::arg("x"), nb::arg("weight").none(), nb::arg("bias") = nb::none(), nb::kw_only(),
      nb::arg("activation") = nb::none(), nb::arg("residual") = nb::none(), nb::arg("out") = nb::none(),
      nb::arg("ctx") = nb::none(),
      nb::sig("def linear(x: ArrayT, weight: Array | PackedWeight, bias: Array | None = None, *, activation: "
              "str | "
              "None = None, residual: Array | None = None, out: ArrayT | None = None, ctx: Context | None = "
              "None) "
              "-> ArrayT"),
      "activation(x W^T + bias) + residual; weight [out in] or a PackedWeight.\n\n"
      "x [... in] or [... heads dim] with heads * dim = in gives [... out]; out may be [... heads dim] too. "
      "activation: relu, gelu, gelu_tanh, silu, sigmoid.");
}

}  // namespace headwise::python
