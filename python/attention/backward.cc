// hw.attention_backward: the gradients of one hw.attention call from its output and log-sum-exp.
#include "python/attention/backward.h"

#include <utility>
#include <vector>

#include "python/arrays/bind.h"
#include "python/arrays/long_flight.h"
#include "python/arrays/values.h"
#include "python/attention/arguments.h"
#include "python/attention/call.h"
#include "python/attention/heads.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "attention_backward";

bool given(nb::handle h) { return !h.is_none(); }

/// One gradient that can be asked for, and where its array comes from; None: it was not given.
struct Wanted {
  const Gradient* gradient;
  nb::handle of;
  const char* word() const { return gradient->term ? call_word(*gradient->term) : gradient->word; }
  bool of_head() const { return gradient->term && gradient->term->of_head; }
  bool GradientSpec::*flag() const { return gradient->wanted; }
};

class BackwardCall {
 public:
  BackwardCall(const AttentionWords& words, const BackwardTensors& saved)
      : call_(words),
        table_(words.relative.is_none() ? nb::none() : nb::object(words.relative.attr("table"))) {
    args_.forward = call_.args();
    require(!args_.forward.packed.given(), ErrorKind::unsupported, kOp,
            "k is packed, which has no gradient; give the plain keys of headwise.unpack_keys(k)");
    args_.forward.out = call_.as_bshd("out", read("out", words.q, saved.out).view);
    args_.dout = call_.as_bshd("dout", read("dout", words.q, saved.dout).view);
    args_.forward.lse = as_lse(read("lse", words.q, saved.lse).view);
    for (const Gradient& g : kGradients) wanted_.push_back({&g, source_of(g, words)});
  }

  nb::object run(nb::handle wants) {
    read_wants(wants);
    CallContext::Engine& engine = call_.context().engine();
    const Turn turn(engine.turn);
    nb::list made;
    nb::dict coefficients;
    std::size_t scale_at = 0;
    for (const Wanted& w : wanted_) {
      if (w.flag() == &GradientSpec::scale) scale_at = nb::len(made);
      nb::object gradient = make(w);
      if (!w.of_head())
        made.append(gradient);
      else if (!gradient.is_none())
        coefficients[w.word()] = gradient;
    }
    made.append(coefficients);
    compute(engine);
    if (narrow_scale_.is_valid())
      made[scale_at] = nb::object(made[scale_at])
                           .attr(call_.kind().is_numpy() ? "astype" : "to")(narrow_scale_.attr("dtype"));
    static const nb::handle result =
        nb::object(nb::module_::import_("headwise._types").attr("AttentionGradients")).release();
    return result(*made);
  }

  /// Those of q, k, v and a bias alone.
  nb::tuple run(const GradientSpec& wants) {
    spec_ = wants;
    CallContext::Engine& engine = call_.context().engine();
    const Turn turn(engine.turn);
    nb::object made[4] = {nb::none(), nb::none(), nb::none(), nb::none()};
    bool GradientSpec::*const flags[] = {&GradientSpec::q, &GradientSpec::k, &GradientSpec::v,
                                         &GradientSpec::bias};
    for (const Wanted& w : wanted_)
      for (std::size_t i = 0; i < std::size(flags); ++i)
        if (w.flag() == flags[i]) made[i] = make(w);
    compute(engine);
    return nb::make_tuple(made[0], made[1], made[2], made[3]);
  }

 private:
  void compute(CallContext::Engine& engine) {
    const BackwardPlan& plan = engine.backward_plans.get(backward_problem_of(args_, call_.spec()),
                                                         engine.context.threads(), call_.kernels());
    if (call_.on_cuda()) engine.context.set_stream(current_stream(call_.kind()));
    LongFlight without_gil;
    plan.run(args_, engine.context);
    without_gil.end();
  }
  /// The array a gradient belongs to: an argument of its own, or one of the coefficients.
  nb::handle source_of(const Gradient& g, const AttentionWords& words) const {
    const nb::handle none(Py_None);
    if (g.term && g.term->of_head) {
      const nb::handle all = words.coefficients;
      PyObject* item =
          all.is_valid() && PyDict_Check(all.ptr()) ? PyDict_GetItemString(all.ptr(), g.word) : nullptr;
      return item ? nb::handle(item) : none;
    }
    if (g.wanted == &GradientSpec::relative) return table_;
    if (g.wanted == &GradientSpec::slopes) return is_array(words.alibi) ? words.alibi : none;
    if (g.wanted == &GradientSpec::scale)  // integers have no gradient
      return is_array(words.scale) && is_float(read_array(kOp, "scale", words.scale).view.dtype) ? words.scale
                                                                                                 : none;
    if (g.term) return words.*word_of(*g.term);
    return g.wanted == &GradientSpec::q ? words.q : g.wanted == &GradientSpec::k ? words.k : words.v;
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
      for (const Wanted& w : wanted_) spec_.*w.flag() = given(w.of);
      return;
    }
    if (!PyList_Check(wants.ptr()) && !PyTuple_Check(wants.ptr()))
      refuse_type({kOp, "wants"}, wants, "a list of argument names, or None for every array given");
    for (const nb::handle item : nb::borrow<nb::sequence>(wants)) {
      const std::string_view word = read_word({kOp, "an entry of wants"}, item);
      const Wanted* found = nullptr;
      std::string names;
      for (const Wanted& w : wanted_) {
        if (word == w.word() && !(w.of_head() && !given(w.of))) found = &w;
        if (!w.of_head()) names += (names.empty() ? "" : ", ") + std::string(w.word());
      }
      require(found != nullptr, ErrorKind::bad_argument, kOp, "wants names \"", word,
              "\"; gradients exist for ", names, " and the given coefficients but rows");
      require(given(found->of), ErrorKind::bad_argument, kOp, "wants the gradient of ", word,
              ", which was not given as an array of floats; give it, or leave it out of wants");
      spec_.*found->flag() = true;
    }
  }
  static bool is_qkv(const Wanted& w) { return w.gradient->term == nullptr; }
  const HeadLayout& layout_of(const Wanted& w) const {
    const HeadSpec& spec = call_.spec();
    return w.flag() == &GradientSpec::q ? spec.q : w.flag() == &GradientSpec::k ? spec.k : spec.v;
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
    if (!(spec_.*w.flag())) return nb::none();
    const Array of = read_anywhere(kOp, w.word(), w.of);
    DType dtype = of.view.dtype;
    if (w.flag() == &GradientSpec::scale && dtype != DType::f64 && dtype != DType::f32) {
      dtype = DType::f32;
      if (of.kind.is_numpy() == call_.kind().is_numpy()) narrow_scale_ = w.of;
    }
    MadeArray made = make_like(w, of.view, dtype);
    AnyView view = made.view;
    if (is_qkv(w))
      view = call_.as_rows(w.word(), call_.as_bshd(w.word(), view), layout_of(w));
    else if (w.flag() == &GradientSpec::bias)
      view = call_.spread_bias(view);
    else if (w.flag() == &GradientSpec::gate)
      view = call_.as_gate(view);
    else if (w.flag() == &GradientSpec::mix_q || w.flag() == &GradientSpec::mix_k)
      view = call_.with_batch(view, 4);
    else if (view.rank == 0)
      view = AnyView::packed(view.data, view.dtype, {1}).on(view.where());
    args_.*w.gradient->view = view;
    return std::move(made.object);
  }

  AttentionCall call_;
  nb::object table_;
  nb::handle narrow_scale_;  // of 16 bits: its gradient is computed in f32, then cast
  BackwardArgs args_;
  GradientSpec spec_;
  std::vector<Wanted> wanted_;
};

/// What comes beside the arguments of the forward.
struct BackwardWords {
  nb::handle dout, out, lse, wants;
};
struct BackwardArgument {
  Argument argument;
  nb::handle BackwardWords::*own = nullptr;  // null: of the forward
};
/// Arguments in their order: dout, q, k, v, out, lse, mask by their place, then the forward's by name.
constexpr std::size_t kByPlaceHere = 7;
constexpr std::size_t kCount = [] {
  std::size_t n = 4;
  for (const Argument& a : kArguments) n += a.of_backward;
  return n;
}();
constexpr std::array<BackwardArgument, kCount> kAll = [] {
  std::array<BackwardArgument, kCount> all{};
  std::size_t n = 0;
  const auto own = [&](const char* name, const char* type, const char* value, nb::handle BackwardWords::*at) {
    all[n++] = {{name, type, value, nullptr}, at};
  };
  own("dout", "ArrayT", nullptr, &BackwardWords::dout);
  for (const Argument& a : kArguments) {
    if (a.word == &AttentionWords::mask) {
      own("out", "ArrayT", nullptr, &BackwardWords::out);
      own("lse", "Array", nullptr, &BackwardWords::lse);
    }
    if (a.word == &AttentionWords::kernels)
      own("wants", "Sequence[str] | None", "None", &BackwardWords::wants);
    if (!a.of_backward) continue;
    all[n] = {a};
    if (a.word == &AttentionWords::k) all[n].argument.type = "ArrayT";  // packed keys have no gradient
    ++n;
  }
  return all;
}();

std::string parameters() {
  std::string all;
  for (std::size_t i = 0; i < kCount; ++i)
    all += text(i == 0 ? "(" : ", ", i == kByPlaceHere ? "*, " : "", spelled(kAll[i].argument));
  return all + ")";
}

template <std::size_t>
using Handle = nb::handle;

template <std::size_t... kPlaces, std::size_t... kNames>
void def_backward(nb::module_& m, std::index_sequence<kPlaces...>, std::index_sequence<kNames...>,
                  const nb::sig& signature) {
  m.def(
      "attention_backward",
      [](Handle<kPlaces>... by_place, Handle<kNames>... by_name) {
        AttentionWords words;
        BackwardWords more;
        for (const Argument& a : kArguments) words.*a.word = nb::handle(Py_None);
        words.return_lse = nb::handle(Py_True);
        const auto put = [&](const BackwardArgument& a, nb::handle h) {
          if (a.own != nullptr)
            more.*a.own = h;
          else
            words.*a.argument.word = h;
        };
        (put(kAll[kPlaces], by_place), ...);
        (put(kAll[kByPlaceHere + kNames], by_name), ...);
        return BackwardCall(words, {.dout = more.dout, .out = more.out, .lse = more.lse}).run(more.wants);
      },
      declared<kAll[kPlaces].argument>()..., nb::kw_only(),
      declared<kAll[kByPlaceHere + kNames].argument>()..., signature,
      "Gradients of attention from the gradient of its output, given what it took and what it returned with\n"
      "return_lse=True. `wants` names the gradients to compute; None stands for every array given.");
}

}  // namespace

nb::tuple gradients_of(const AttentionWords& words, const BackwardTensors& saved, const GradientSpec& wants) {
  return BackwardCall(words, saved).run(wants);
}

void bind_backward(nb::module_& m) {
  static const std::string signature = text("def attention_backward", parameters(), " -> AttentionGradients");
  def_backward(m, std::make_index_sequence<kByPlaceHere>(), std::make_index_sequence<kCount - kByPlaceHere>(),
               nb::sig(signature.c_str()));
}

}  // namespace headwise::python
