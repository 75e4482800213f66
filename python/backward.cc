// hw.attention_backward: the gradients of one hw.attention call from its output and log-sum-exp.
#include "headwise/ops/attention_backward_cuda.h"

#include <utility>
#include <vector>

#include "python/bind.h"
#include "python/call.h"
#include "python/heads.h"
#include "python/values.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "attention_backward";

bool given(nb::handle h) { return !h.is_none(); }

/// One gradient that can be asked for: its word, where its array comes from, where its view goes.
struct Wanted {
  const char* word;
  nb::handle of;
  bool GradientSpec::*flag;
  AnyView BackwardArgs::*view;
};

class BackwardCall {
 public:
  BackwardCall(const AttentionWords& words, nb::handle dout, nb::handle out, nb::handle lse, nb::handle wants)
      : call_(words),
        table_(words.relative.is_none() ? nb::none() : nb::object(words.relative.attr("table"))) {
    args_.forward = call_.args();
    require(!args_.forward.packed.given(), ErrorKind::unsupported, kOp,
            "k is packed, which has no gradient; give the plain keys of headwise.unpack_keys(k)");
    args_.forward.out = call_.as_bshd("out", read("out", words.q, out).view);
    args_.dout = call_.as_bshd("dout", read("dout", words.q, dout).view);
    args_.forward.lse = as_lse(read("lse", words.q, lse).view);
    const bool has_slopes = is_array(words.alibi),
               has_scale = is_array(words.scale) &&  // integers have no gradient
                           is_float(read_array(kOp, "scale", words.scale).view.dtype);
    wanted_ = {
        {"q", words.q, &GradientSpec::q, &BackwardArgs::dq},
        {"k", words.k, &GradientSpec::k, &BackwardArgs::dk},
        {"v", words.v, &GradientSpec::v, &BackwardArgs::dv},
        {"bias", words.bias, &GradientSpec::bias, &BackwardArgs::dbias},
        {"alibi", has_slopes ? words.alibi : nb::handle(Py_None), &GradientSpec::slopes,
         &BackwardArgs::dslopes},
        {"relative", table_, &GradientSpec::relative, &BackwardArgs::drelative},
        {"sinks", words.sinks, &GradientSpec::sinks, &BackwardArgs::dsinks},
        {"scale", has_scale ? words.scale : nb::handle(Py_None), &GradientSpec::scale, &BackwardArgs::dscale},
        {"gate", words.gate, &GradientSpec::gate, &BackwardArgs::dgate}};
    terms_ = wanted_.size();
    for (const Coefficient& c : kCoefficients)
      if (const nb::handle item = coefficient(words.coefficients, c.name); item.is_valid())
        wanted_.push_back({c.name, item, c.wanted, c.gradient});
    read_wants(wants);
  }

  nb::object run() {
    CallContext::Engine& engine = call_.context().engine();
    const Turn turn(engine.turn);
    nb::list made;
    nb::dict coefficients;
    std::size_t scale_at = 0;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i].flag == &GradientSpec::scale) scale_at = i;
      nb::object gradient = make(wanted_[i]);
      if (i < terms_)
        made.append(gradient);
      else if (!gradient.is_none())
        coefficients[wanted_[i].word] = gradient;
    }
    made.append(coefficients);
    if (call_.on_cuda()) {
      void* const stream = current_stream(call_.kind());
      const Flight without_gil;
      attention_backward_cuda(args_, call_.kind().device, stream, call_.kernels(), call_.spec());
    } else {
      const BackwardPlan& plan = engine.backward_plans.get(backward_problem_of(args_, call_.spec()),
                                                           engine.context.threads(), call_.kernels());
      const Flight without_gil;
      plan.run(args_, engine.context);
    }
    if (narrow_scale_.is_valid())
      made[scale_at] = nb::object(made[scale_at])
                           .attr(call_.kind().is_numpy() ? "astype" : "to")(narrow_scale_.attr("dtype"));
    static const nb::handle result =
        nb::object(nb::module_::import_("headwise._types").attr("AttentionGradients")).release();
    return result(*made);
  }

 private:
  static nb::handle coefficient(nb::handle all, const char* name) {
    return all.is_valid() && PyDict_Check(all.ptr()) ? nb::handle(PyDict_GetItemString(all.ptr(), name))
                                                     : nb::handle();
  }
  Array read(const char* name, nb::handle like, nb::handle h) const {
    const Array a = read_anywhere(kOp, name, h);
    if (!(a.kind == call_.kind())) refuse_kinds(kOp, {"q", like}, {name, h});
    return a;
  }
  /// [batch heads q]; ragged: [heads tokens].
  AnyView as_lse(const AnyView& lse) const {
    if (!call_.ragged()) return lse;
    require(lse.rank == 2, ErrorKind::bad_shape, kOp, "lse is ", lse,
            " but a ragged batch has [heads tokens]; give the lse that attention returned");
    AnyView r = lse;
    r.rank = 3;
    r.size[0] = 1, r.step[0] = 0;
    for (int axis = 0; axis < 2; ++axis) r.size[axis + 1] = lse.size[axis], r.step[axis + 1] = lse.step[axis];
    return r;
  }
  void read_wants(nb::handle wants) {
    if (!given(wants)) {  // every array that was given
      for (const Wanted& w : wanted_) spec_.*w.flag = given(w.of);
      return;
    }
    if (!PyList_Check(wants.ptr()) && !PyTuple_Check(wants.ptr()))
      refuse_type({kOp, "wants"}, wants, "a list of argument names, or None for every array given");
    for (const nb::handle item : nb::borrow<nb::sequence>(wants)) {
      const std::string_view word = read_word({kOp, "an entry of wants"}, item);
      const Wanted* found = nullptr;
      for (const Wanted& w : wanted_)
        if (word == w.word) found = &w;
      require(found != nullptr, ErrorKind::bad_argument, kOp, "wants names \"", word,
              "\"; gradients exist for q, k, v, bias, alibi, relative, sinks, scale, gate and the given "
              "coefficients but rows");
      require(given(found->of), ErrorKind::bad_argument, kOp, "wants the gradient of ", word,
              ", which was not given as an array of floats; give it, or leave it out of wants");
      spec_.*found->flag = true;
    }
  }
  static bool is_qkv(const Wanted& w) {
    return w.flag == &GradientSpec::q || w.flag == &GradientSpec::k || w.flag == &GradientSpec::v;
  }
  const HeadLayout& layout_of(const Wanted& w) const {
    const HeadSpec& spec = call_.spec();
    return w.flag == &GradientSpec::q ? spec.q : w.flag == &GradientSpec::k ? spec.k : spec.v;
  }
  /// The size of `of`. A head that reads rows of a token writes their gradients as rows too: then heads lie
  /// behind tokens in memory, whatever the order of axes.
  MadeArray make_like(const Wanted& w, const AnyView& of, DType dtype) const {
    AnyView shape = of;
    const int tokens = call_.tokens_axis(), heads = call_.heads_axis();
    const bool turned = is_qkv(w) && layout_of(w).row != 0 && heads < tokens;
    if (turned) std::swap(shape.size[tokens], shape.size[heads]);
    MadeArray made = make_array(call_.kind(), w.of, dtype, {shape.size, static_cast<std::size_t>(of.rank)});
    if (turned) {
      made.object = made.object.attr("swapaxes")(tokens, heads);
      std::swap(made.view.size[tokens], made.view.size[heads]);
      std::swap(made.view.step[tokens], made.view.step[heads]);
    }
    return made;
  }
  nb::object make(const Wanted& w) {
    if (!(spec_.*w.flag)) return nb::none();
    const Array of = read_anywhere(kOp, w.word, w.of);
    DType dtype = of.view.dtype;
    if (w.flag == &GradientSpec::scale && dtype != DType::f64 && dtype != DType::f32) {
      dtype = DType::f32;
      if (of.kind.is_numpy() == call_.kind().is_numpy()) narrow_scale_ = w.of;
    }
    MadeArray made = make_like(w, of.view, dtype);
    AnyView view = made.view;
    if (is_qkv(w))
      view = call_.as_rows(w.word, call_.as_bshd(w.word, view), layout_of(w));
    else if (w.flag == &GradientSpec::bias)
      view = call_.spread_bias(view);
    else if (w.flag == &GradientSpec::gate)
      view = call_.as_gate(view);
    else if (w.flag == &GradientSpec::mix_q || w.flag == &GradientSpec::mix_k)
      view = call_.with_batch(view, 4);
    else if (view.rank == 0)
      view = AnyView::packed(view.data, view.dtype, {1});
    args_.*w.view = view;
    return std::move(made.object);
  }

  AttentionCall call_;
  nb::object table_;
  nb::handle narrow_scale_;  // of 16 bits: its gradient is computed in f32, then cast
  BackwardArgs args_;
  GradientSpec spec_;
  std::vector<Wanted> wanted_;  // terms_ of them by their own words, then coefficients
  std::size_t terms_ = 0;
};

}  // namespace

void bind_backward(nb::module_& m) {
  m.def(
      "attention_backward",
      [](nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
         nb::handle mask, nb::handle scale, nb::handle softcap, nb::handle bias, nb::handle alibi,
         nb::handle relative, nb::handle sinks, nb::handle gate, nb::handle dropout, nb::handle seed,
         nb::handle q_start, nb::handle q_offsets, nb::handle kv_offsets, nb::handle layout, nb::handle wants,
         nb::handle kernels, nb::handle ctx, nb::handle head, nb::handle coefficients) {
        const nb::handle none(Py_None), yes(Py_True);
        const AttentionWords words{q,         k,          v,     mask, scale,        softcap, bias,
                                   alibi,     relative,   sinks, gate, dropout,      seed,    q_start,
                                   q_offsets, kv_offsets, none,  none, layout,       none,    yes,
                                   none,      kernels,    ctx,   head, coefficients, none};
        return BackwardCall(words, dout, out, lse, wants).run();
      },
      nb::arg("dout").none(), nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
      nb::arg("out").none(), nb::arg("lse").none(), nb::arg("mask") = nb::none(), nb::kw_only(),
      nb::arg("scale") = nb::none(), nb::arg("softcap") = nb::none(), nb::arg("bias") = nb::none(),
      nb::arg("alibi") = nb::none(), nb::arg("relative") = nb::none(), nb::arg("sinks") = nb::none(),
      nb::arg("gate") = nb::none(), nb::arg("dropout") = 0.0, nb::arg("seed") = 0, nb::arg("q_start") = 0,
      nb::arg("q_offsets") = nb::none(), nb::arg("kv_offsets") = nb::none(), nb::arg("layout") = "bshd",
      nb::arg("wants") = nb::none(), nb::arg("kernels") = nb::none(), nb::arg("ctx") = nb::none(),
      nb::arg("head") = nb::none(), nb::arg("coefficients") = nb::none(),
      nb::sig(
          "def attention_backward(dout: ArrayT, q: ArrayT, k: ArrayT, v: ArrayT, out: ArrayT, lse: "
          "Array, mask: Mask | "
          "Sequence[Mask] | None = None, *, scale: float | Array | None = None, softcap: float | None = "
          "None, "
          "bias: Array | None = None, alibi: bool | Array | None = None, relative: T5 | None = None, "
          "sinks: Array | "
          "None = None, gate: Array | None = None, dropout: float = 0.0, seed: int = 0, q_start: int | "
          "Sequence[int] "
          "| Array = 0, q_offsets: Sequence[int] | Array | None = None, kv_offsets: Sequence[int] | "
          "Array | None = "
          "None, layout: str = 'bshd', wants: Sequence[str] | None = None, kernels: str | Sequence[str] "
          "| None = "
          "None, ctx: Context | None = None, head: Head | str | None = None, coefficients: dict[str, Array] "
          "| None = None) -> AttentionGradients"),
      "Gradients of attention from the gradient of its output, given what it took and what it returned with\n"
      "return_lse=True. `wants` names the gradients to compute; None stands for every array given.");
}

}  // namespace headwise::python
