// hw.rope, hw.rms_norm, hw.l2_norm: the small ops beside attention.
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/row/rope.h"
#include "python/arrays/array.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/values.h"

namespace headwise::python {
namespace {

bool given(nb::handle h) { return !h.is_none(); }

/// x and where its image goes: `out` as given (x itself is allowed), or a fresh array like x.
struct InOut {
  Array x;
  nb::object object;
  AnyView out;
};
InOut in_out(const char* op, nb::handle x, nb::handle out) {
  InOut r{read_array(op, "x", x), {}, {}};
  if (!given(out)) {
    MadeArray made =
        make_array(r.x.kind, x, r.x.view.dtype, {r.x.view.size, static_cast<std::size_t>(r.x.view.rank)});
    r.object = std::move(made.object);
    r.out = made.view;
    return r;
  }
  const Array given_out = read_array(op, "out", out);
  if (!(given_out.kind == r.x.kind)) refuse_kinds(op, {"x", x}, {"out", out});
  require(given_out.writable, ErrorKind::bad_argument, op, "out is read-only; give a writable array");
  r.object = nb::borrow(out);
  r.out = given_out.view;
  return r;
}

/// [batch tokens heads dim] from an array in a layout of that many axes, and from [tokens heads dim].
AnyView as_tokens(const char* op, const char* name, const AnyView& v, bool heads_first) {
  require(v.rank == 3 || v.rank == 4, ErrorKind::bad_shape, op, name, " is ", v,
          "; give [batch tokens heads dim] or [tokens heads dim]");
  AnyView r = v;
  r.rank = 4;
  if (v.rank == 3) {
    r.size[0] = 1, r.step[0] = 0;
    for (int axis = 0; axis < 3; ++axis) r.size[axis + 1] = v.size[axis], r.step[axis + 1] = v.step[axis];
  }
  if (heads_first) std::swap(r.size[1], r.size[2]), std::swap(r.step[1], r.step[2]);
  return r;
}

RopeOptions rope_options(nb::handle base, nb::handle interleaved, nb::handle rotary_dim, nb::handle scaling,
                         nb::handle inverse) {
  RopeOptions o;
  o.kind = read_bool({"rope", "interleaved"}, interleaved) ? RopeKind::interleaved : RopeKind::half;
  if (given(rotary_dim)) o.rotary_dim = read_index({"rope", "rotary_dim"}, rotary_dim);
  o.base = read_number({"rope", "base"}, base);
  o.inverse = read_bool({"rope", "inverse"}, inverse);
  if (!given(scaling)) return o;
  if (!nb::isinstance<RopeScaling>(scaling))
    refuse_type({"rope", "scaling"}, scaling, "headwise.RopeScaling.linear, ntk, yarn or llama3");
  o.scaling = *nb::inst_ptr<RopeScaling>(scaling);
  return o;
}

nb::object rope_of(nb::handle x, nb::handle positions, const RopeOptions& options, nb::handle layout,
                   nb::handle out, nb::handle ctx) {
  const std::string_view word = read_word({"rope", "layout"}, layout);
  require(word == "bshd" || word == "bhsd", ErrorKind::bad_argument, "rope", "layout is \"", word,
          "\"; give \"bshd\" or \"bhsd\"");
  InOut io = in_out("rope", x, out);
  const AnyView from = as_tokens("rope", "x", io.x.view, word == "bhsd");
  const AnyView to = as_tokens("rope", "out", io.out, word == "bhsd");
  std::vector<Index> each;
  AnyView tensor;
  Index start = 0;
  if (is_array(positions)) {
    const Array a = read_array("rope", "positions", positions);
    tensor = a.view;
    require(tensor.dtype == DType::i64 || tensor.dtype == DType::i32, ErrorKind::bad_dtype, "rope",
            "positions are ", tensor,
            "; give int32 or int64 [tokens] or [batch tokens], or the position of token 0");
    if (tensor.dtype == DType::i32) {
      require(tensor.rank == 1, ErrorKind::bad_dtype, "rope", "positions are ", tensor,
              "; int32 positions come as [tokens], others as int64");
      each = read_indices({"rope", "positions"}, positions);
      tensor = AnyView::packed(each.data(), DType::i64, {static_cast<Index>(each.size())});
    }
  } else if (PyIndex_Check(positions.ptr())) {
    start = read_index({"rope", "positions"}, positions);
  } else {
    each = read_indices({"rope", "positions"}, positions);
    tensor = AnyView::packed(each.data(), DType::i64, {static_cast<Index>(each.size())});
  }
  const RopePositions at = tensor.given() ? RopePositions(tensor) : RopePositions(start);
  run_alone(context_of("rope", ctx), [&](Context& c) { rope(from, at, to, options, c); });
  return io.object;
}

nb::object norm_of(const char* op, nb::handle x, nb::handle weight, nb::handle out, nb::handle ctx,
                   auto&& run) {
  InOut io = in_out(op, x, out);
  const AnyView w = given(weight) ? read_array(op, "weight", weight).view : AnyView();
  run_alone(context_of(op, ctx), [&](Context& c) { run(io.x.view, w, io.out, c); });
  return io.object;
}

void bind_rope(nb::module_& m) {
  nb::class_<RopeScaling>(m, "RopeScaling",
                          "How rotary frequencies change for texts longer than the training length.")
      .def_static("linear", &RopeScaling::linear, nb::arg("factor"))
      .def_static("ntk", &RopeScaling::ntk, nb::arg("factor"))
      .def_static("dynamic_ntk", &RopeScaling::dynamic_ntk, nb::arg("factor"), nb::arg("length"),
                  nb::arg("original_length"))
      .def_static(
          "yarn",
          [](double factor, Index original_length, double beta_fast, double beta_slow,
             double attention_factor, bool truncate) {
            RopeScaling s = RopeScaling::yarn(factor, original_length);
            s.beta_fast = beta_fast, s.beta_slow = beta_slow;
            s.attention_factor = attention_factor, s.truncate = truncate;
            return s;
          },
          nb::arg("factor"), nb::arg("original_length"), nb::kw_only(), nb::arg("beta_fast") = 32.0,
          nb::arg("beta_slow") = 1.0, nb::arg("attention_factor") = 0.0, nb::arg("truncate") = true)
      .def_static("llama3", &RopeScaling::llama3, nb::arg("factor"), nb::arg("low_freq_factor"),
                  nb::arg("high_freq_factor"), nb::arg("original_length"));
  m.def(
      "rope",
      [](nb::handle x, nb::handle positions, nb::handle base, nb::handle interleaved, nb::handle rotary_dim,
         nb::handle scaling, nb::handle inverse, nb::handle layout, nb::handle out, nb::handle ctx) {
        return rope_of(x, positions, rope_options(base, interleaved, rotary_dim, scaling, inverse), layout,
                       out, ctx);
      },
      nb::arg("x"), nb::arg("positions") = 0, nb::kw_only(), nb::arg("base") = 10000.0,
      nb::arg("interleaved") = false, nb::arg("rotary_dim") = nb::none(), nb::arg("scaling") = nb::none(),
      nb::arg("inverse") = false, nb::arg("layout") = "bshd", nb::arg("out") = nb::none(),
      nb::arg("ctx") = nb::none(),
      nb::sig("def rope(x: ArrayT, positions: int | Sequence[int] | Array = 0, *, base: float = 10000.0, "
              "interleaved: bool = "
              "False, rotary_dim: int | None = None, scaling: RopeScaling | None = None, inverse: bool = "
              "False, layout: str "
              "= 'bshd', out: ArrayT | None = None, ctx: Context | None = None) -> ArrayT"),
      "Turns pairs of dimensions of x [batch tokens heads dim] or [tokens heads dim] by position times "
      "frequency.\n\n"
      "positions: the position of token 0, or one per token. out may be x itself.");
}

void bind_norms(nb::module_& m) {
  m.def(
      "rms_norm",
      [](nb::handle x, nb::handle weight, nb::handle eps, nb::handle one_plus, nb::handle out,
         nb::handle ctx) {
        const RmsNormOptions options{
            read_number({"rms_norm", "eps"}, eps),
            read_bool({"rms_norm", "one_plus"}, one_plus) ? WeightForm::one_plus : WeightForm::plain};
        return norm_of("rms_norm", x, weight, out, ctx,
                       [&](const AnyView& from, const AnyView& w, const AnyView& to, Context& c) {
                         rms_norm(from, w, to, options, c);
                       });
      },
      nb::arg("x"), nb::arg("weight") = nb::none(), nb::kw_only(), nb::arg("eps") = 1e-6,
      nb::arg("one_plus") = false, nb::arg("out") = nb::none(), nb::arg("ctx") = nb::none(),
      nb::sig("def rms_norm(x: ArrayT, weight: Array | None = None, *, eps: float = 1e-06, one_plus: bool = "
              "False, out: ArrayT "
              "| None = None, ctx: Context | None = None) -> ArrayT"),
      "x / sqrt(mean(x^2) + eps) * weight along the last axis; weight [dim] or [heads dim]; one_plus: (1 + "
      "weight).");
  m.def(
      "l2_norm",
      [](nb::handle x, nb::handle weight, nb::handle eps, nb::handle out, nb::handle ctx) {
        const L2NormOptions options{read_number({"l2_norm", "eps"}, eps)};
        return norm_of("l2_norm", x, weight, out, ctx,
                       [&](const AnyView& from, const AnyView& w, const AnyView& to, Context& c) {
                         l2_norm(from, w, to, options, c);
                       });
      },
      nb::arg("x"), nb::arg("weight") = nb::none(), nb::kw_only(), nb::arg("eps") = 1e-6,
      nb::arg("out") = nb::none(), nb::arg("ctx") = nb::none(),
      nb::sig("def l2_norm(x: ArrayT, weight: Array | None = None, *, eps: float = 1e-06, out: ArrayT | None "
              "= None, ctx: "
              "Context | None = None) -> ArrayT"),
      "x / max(|x|, eps) * weight along the last axis; weight as in rms_norm, sizes of 1 repeat.");
}

}  // namespace

void bind_ops(nb::module_& m) {
  bind_rope(m);
  bind_norms(m);
}

}  // namespace headwise::python
