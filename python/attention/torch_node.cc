// Attention as torch's own gradient node: the kernels behind aten's overridable attention op. torch records
// the op in C++, which takes a fraction of the time of an autograd function in Python.
#include <nanobind/stl/vector.h>

#include "python/arrays/bind.h"
#include "python/attention/arguments.h"
#include "python/attention/backward.h"
#include "python/attention/call.h"

namespace headwise::python {
namespace {

/// The words of calls that differ in their tensors alone. The op has no argument for them: its dropout
/// carries the place in this list, and torch keeps it for the gradient.
struct NodeWords {
  AttentionWords words;
  nb::object mask;
  std::vector<nb::object> kept;
  bool plain = false;  // nothing but a mask, a scale and a layout
};
std::vector<NodeWords>& all_words() {
  static auto* all = new std::vector<NodeWords>;  // Python's objects outlive static ones badly
  return *all;
}

/// Masks of a few numbers recur from call to call; what lists lengths or bits may be another each time.
bool recurs(const Mask& mask) {
  constexpr Index kNumbers = 16;
  const MaskSet set = mask.set();
  Index numbers = 0;
  for (Index n = 0; n < set.count; ++n)
    for (int i = 0; i < set.views[n].count; ++i) {
      const MaskStep& s = set.views[n].steps[i];
      if (s.bits != nullptr) return false;
      numbers += 1 + s.n;
    }
  return numbers <= kNumbers;
}

/// The place of a new entry; 0: its mask is too large to be kept.
double add_words(nb::handle mask, const nb::dict& given) {
  if (!mask.is_none() && !recurs(nb::cast<const Mask&>(mask))) return 0;
  NodeWords made;
  for (const Argument& a : kArguments) {
    PyObject* item = PyDict_GetItemString(given.ptr(), a.name);
    made.kept.push_back(item ? nb::borrow(item) : a.value ? default_of(a) : nb::none());
    made.words.*a.word = made.kept.back();
  }
  made.mask = nb::borrow(mask);
  made.words.mask = made.mask;
  made.words.return_lse = nb::handle(Py_True);
  all_words().push_back(std::move(made));
  return static_cast<double>(all_words().size());
}

const NodeWords& words_at(double place) {
  require(
      place >= 1 && place <= static_cast<double>(all_words().size()), ErrorKind::unsupported, "attention",
      "aten's overridable attention was called on plain tensors; call headwise.torch.attention, or torch's "
      "scaled_dot_product_attention");
  return all_words()[static_cast<std::size_t>(place) - 1];
}

/// Every word as by default.
const AttentionWords& plain_words() {
  static const auto* words = [] {
    auto* made = new AttentionWords;
    for (const Argument& a : kArguments)
      made->*a.word = a.value ? default_of(a).release() : nb::handle(Py_None);
    return made;
  }();
  return *words;
}

/// The op that torch records, once it is known to be there.
nb::handle& op() {
  static nb::handle found;
  return found;
}
/// Nothing, as the op's other outputs.
nb::handle& placeholder() {
  static nb::handle empty;
  return empty;
}

/// (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)
nb::tuple forward(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, double place) {
  AttentionWords words = words_at(place).words;
  words.q = q, words.k = k, words.v = v, words.bias = bias;
  const BelowAutograd here;
  AttentionCall call(words);
  call.compute();
  const nb::handle e = placeholder();
  return nb::make_tuple(call.out(), call.lse(), e, e, 0, 0, e, e, e);
}

/// Gradients that will be differentiated again: whoever does is told that it cannot be done.
nb::object once(const nb::tuple& gradients, const nb::tuple& inputs) {
  static const nb::handle helper =
      nb::object(nb::module_::import_("headwise._torch.ops").attr("once")).release();
  return helper(gradients, inputs);
}

bool grad_enabled() {
  static const nb::handle asks = nb::object(nb::module_::import_("torch").attr("is_grad_enabled")).release();
  return nb::steal(PyObject_CallNoArgs(asks.ptr())).ptr() == Py_True;
}

/// Tiles of a GPU cannot read a gradient that autograd spread by steps of 0.
nb::object dense(nb::handle dout) {
  static const nb::handle is_cuda = nb::steal(PyUnicode_InternFromString("is_cuda")).release();
  return nb::cast<bool>(nb::getattr(dout, is_cuda)) ? nb::object(dout.attr("contiguous")())
                                                    : nb::borrow(dout);
}

/// What the op of the gradient takes, by name.
struct Saved {
  nb::handle dout, q, k, v, bias, wants, out, lse;
  double place;
};
nb::object backward(const Saved& s) {
  const nb::handle none(Py_None);
  if (s.dout.is_none()) return nb::make_tuple(none, none, none, none);  // nobody used the output
  AttentionWords words = words_at(s.place).words;
  words.q = s.q, words.k = s.k, words.v = s.v, words.bias = s.bias;
  words.kernels = nb::handle(Py_None);  // names of forward kernels
  const auto wanted = nb::cast<std::vector<bool>>(s.wants);
  GradientSpec wants;
  bool GradientSpec::*const flags[] = {&GradientSpec::q, &GradientSpec::k, &GradientSpec::v,
                                       &GradientSpec::bias};
  for (std::size_t i = 0; i < std::size(flags); ++i) wants.*flags[i] = wanted.at(i);
  nb::tuple found;
  {
    const BelowAutograd here;
    const nb::object dout = dense(s.dout);
    found = gradients_of(words, {.dout = dout, .out = s.out, .lse = s.lse}, wants);
  }
  return grad_enabled() ? once(found, nb::make_tuple(s.dout, s.q, s.k, s.v, s.bias)) : found;
}

/// What torch says of the call that comes, and its own objects; looked up once.
class Torch {
 public:
  static const Torch& get() {
    static const auto* torch = new Torch;
    return *torch;
  }
  bool plain(nb::handle x) const { return Py_TYPE(x.ptr()) == tensor_ || Py_TYPE(x.ptr()) == parameter_; }
  /// Nobody watches, casts or transforms what happens to tensors.
  bool quiet() const {
    if (says(dispatch_modes_) || says(transformed_) || says(autocast_)) return false;
    const nb::object level = nb::steal(PyObject_GetAttr(forward_ad_, level_));
    if (!level.is_valid()) nb::raise_python_error();
    return PyLong_AsLong(level.ptr()) < 0;
  }
  bool records() const { return says(grad_enabled_); }
  bool flag(nb::handle x, PyObject* name) const {
    const nb::object value = nb::steal(PyObject_GetAttr(x.ptr(), name));
    if (!value.is_valid()) nb::raise_python_error();
    return value.ptr() == Py_True;
  }
  PyObject *requires_grad, *is_meta;

 private:
  Torch() {
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object c = torch.attr("_C");
    const auto keep = [](nb::object x) { return x.release().ptr(); };
    tensor_ = reinterpret_cast<PyTypeObject*>(keep(torch.attr("Tensor")));
    parameter_ = reinterpret_cast<PyTypeObject*>(keep(torch.attr("nn").attr("Parameter")));
    dispatch_modes_ = keep(c.attr("_len_torch_dispatch_stack"));
    transformed_ = keep(c.attr("_are_functorch_transforms_active"));
    autocast_ = keep(c.attr("_is_any_autocast_enabled"));
    grad_enabled_ = keep(torch.attr("is_grad_enabled"));
    forward_ad_ = keep(nb::module_::import_("torch.autograd.forward_ad"));
    level_ = PyUnicode_InternFromString("_current_level");
    requires_grad = PyUnicode_InternFromString("requires_grad");
    is_meta = PyUnicode_InternFromString("is_meta");
  }
  static bool says(PyObject* asked) {
    const nb::object answer = nb::steal(PyObject_CallNoArgs(asked));
    if (!answer.is_valid()) nb::raise_python_error();
    return PyObject_IsTrue(answer.ptr()) == 1;
  }
  PyTypeObject *tensor_, *parameter_;
  PyObject *dispatch_modes_, *transformed_, *autocast_, *grad_enabled_, *forward_ad_, *level_;
};

/// The place of these words, from the last call on; 0: they have none.
double place_of(nb::handle mask, nb::handle scale, nb::handle layout) {
  constexpr std::size_t kMost = 256;
  static std::size_t last = 0;
  const auto same = [](nb::handle a, nb::handle b) {
    if (a.ptr() == b.ptr()) return true;
    return Py_TYPE(a.ptr()) == Py_TYPE(b.ptr()) && PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ) == 1;
  };
  const auto is = [&](const NodeWords& w) {
    return same(w.words.mask, mask) && same(w.words.scale, scale) && same(w.words.layout, layout) && w.plain;
  };
  const std::vector<NodeWords>& all = all_words();
  if (last < all.size() && is(all[last])) return static_cast<double>(last + 1);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (is(all[i])) return static_cast<double>((last = i) + 1);
  if (all.size() >= kMost) return 0;
  nb::dict words;
  words["scale"] = scale, words["layout"] = layout;
  const double place = add_words(mask, words);
  if (place > 0) all_words().back().plain = true;
  return place;
}

/// A call with nothing but a mask, a scale and a layout.
struct PlainCall {
  nb::handle q, k, v, mask, scale;
  bool fits(const Torch& torch) const {
    return torch.plain(q) && torch.plain(k) && torch.plain(v) && torch.quiet() &&
           !torch.flag(q, torch.is_meta) && (mask.is_none() || nb::isinstance<Mask>(mask)) &&
           (scale.is_none() || PyFloat_CheckExact(scale.ptr()));
  }
  bool records(const Torch& torch) const {
    return torch.records() && (torch.flag(q, torch.requires_grad) || torch.flag(k, torch.requires_grad) ||
                               torch.flag(v, torch.requires_grad));
  }
  AttentionWords words(nb::handle layout) const {
    AttentionWords words = plain_words();
    words.q = q, words.k = k, words.v = v, words.mask = mask, words.scale = scale, words.layout = layout;
    return words;
  }
};

/// Its whole way; NotImplemented: it is another call than that.
nb::object attend(const PlainCall& call, nb::handle layout) {
  const Torch& torch = Torch::get();
  if (!call.fits(torch)) return nb::borrow(Py_NotImplemented);
  if (!call.records(torch)) {
    const BelowAutograd looked_after;
    return AttentionCall(call.words(layout)).run();
  }
  const double place = op().is_valid() ? place_of(call.mask, call.scale, layout) : 0;
  if (place == 0) return nb::borrow(Py_NotImplemented);
  const nb::object number = nb::steal(PyFloat_FromDouble(place));
  return nb::object(op()(call.q, call.k, call.v, nb::none(), number)[0]);
}

/// The same as models of transformers call it: q, k and v come with heads before tokens, the output has
/// tokens before heads, and nothing is recorded.
nb::object attend_layer(const PlainCall& call) {
  static const nb::handle heads_first = nb::steal(PyUnicode_InternFromString("bhsd")).release();
  const Torch& torch = Torch::get();
  if (!call.fits(torch) || call.records(torch)) return nb::borrow(Py_NotImplemented);
  const BelowAutograd looked_after;
  AttentionCall run(call.words(heads_first));
  run.put_tokens_first();
  return run.run();
}

}  // namespace

void bind_torch_node(nb::module_& m) {
  m.def("_node_words", &add_words, nb::arg("mask").none(), nb::arg("words"));
  m.def("_node_open", [](nb::handle torch_op, nb::handle empty) {
    op() = nb::borrow(torch_op).release();
    placeholder() = nb::borrow(empty).release();
  });
  m.def(
      "_node_attend",
      [](nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle scale, nb::handle layout) {
        return attend({q, k, v, mask, scale}, layout);
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask").none(), nb::arg("scale").none(),
      nb::arg("layout"));
  m.def(
      "_node_seconds",
      [](nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle scale, nb::handle layout,
         int count) {
        return AttentionCall(PlainCall{q, k, v, mask, scale}.words(layout)).seconds(count);
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask").none(), nb::arg("scale").none(),
      nb::arg("layout"), nb::arg("count"));
  m.def(
      "_node_layer",
      [](nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle scale) {
        return attend_layer({q, k, v, mask, scale});
      },
      nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask").none(), nb::arg("scale").none());
  m.def(
      "_node_forward",
      [](nb::handle q, nb::handle k, nb::handle v, nb::handle bias, double place, bool, bool, nb::handle) {
        return forward(q, k, v, bias, place);
      },
      nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("attn_bias") = nb::none(),
      nb::arg("dropout_p") = 0.0, nb::arg("is_causal") = false, nb::arg("return_debug_mask") = false,
      nb::arg("scale") = nb::none());
  m.def(
      "_node_backward",
      [](nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle wants,
         nb::handle out, nb::handle lse, nb::handle, nb::handle, nb::handle, nb::handle, double place, bool,
         nb::handle, nb::handle, nb::handle) {
        return backward({dout, q, k, v, bias, wants, out, lse, place});
      },
      nb::arg("grad_out").none(), nb::arg("query"), nb::arg("key"), nb::arg("value"),
      nb::arg("attn_bias").none(), nb::arg("grad_input_mask"), nb::arg("out"), nb::arg("logsumexp"),
      nb::arg("cum_seq_q"), nb::arg("cum_seq_k"), nb::arg("max_q"), nb::arg("max_k"), nb::arg("dropout_p"),
      nb::arg("is_causal"), nb::arg("philox_seed"), nb::arg("philox_offset"), nb::arg("scale") = nb::none());
}

}  // namespace headwise::python
