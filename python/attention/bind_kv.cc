// hw.pack_keys, hw.append_keys, hw.unpack_keys, hw.quantize_kv: what a cache of keys and values stores.
#include "headwise/ops/keys/packed_keys.h"
#include "headwise/ops/keys/quantize_kv.h"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"
#include "python/attention/call.h"

namespace headwise::python {
namespace {

bool given(nb::handle h) { return !h.is_none(); }

template <class F>
void run_alone(const char* op, nb::handle ctx, F&& f) {
  CallContext::Engine& engine = context_of(op, ctx).engine();
  const Turn turn(engine.turn);
  const Flight without_gil;
  f(engine.context);
}

/// An array of four axes as [batch tokens heads dim].
struct Tokens {
  Array array;
  AnyView view;
};
Tokens read_tokens(const char* op, const char* name, nb::handle h, const AxisOrder& order) {
  Tokens t{read_array(op, name, h), {}};
  t.view = as_bshd(op, name, t.array.view, order, false);
  return t;
}
/// A fresh array of the given [batch tokens heads dim] in the caller's order; `axes` 3: without dim.
MadeArray make_tokens(const ArrayKind& kind, nb::handle like, DType dtype, const Index (&bshd)[4],
                      const AxisOrder& order, int axes) {
  Index sizes[4];
  sizes[order.batch] = bshd[0], sizes[order.tokens] = bshd[1], sizes[order.heads] = bshd[2],
  sizes[3] = bshd[3];
  return make_array(kind, like, dtype, {sizes, static_cast<std::size_t>(axes)});
}

PackedCache& read_packed(const char* op, nb::handle h) {
  if (!nb::isinstance<PackedCache>(h))
    refuse_type({op, "packed"}, h, "the headwise.PackedKeys that pack_keys made");
  return nb::cast<PackedCache&>(h);
}

PackedCache pack(nb::handle k, nb::handle capacity, nb::handle layout, nb::handle ctx) {
  const char* op = "pack_keys";
  const Tokens t = read_tokens(op, "k", k, layout_named(op, layout));
  const Index room = given(capacity) ? read_index({op, "capacity"}, capacity) : t.view.size[1];
  PackedCache cache{packed_keys(t.view.dtype, t.view.size[2], t.view.size[3], room), {}, {}, t.array.kind};
  const Index sizes[] = {t.view.size[0], t.view.size[2], cache.about.room()};
  MadeArray made = make_array(t.array.kind, k, t.view.dtype, sizes);
  cache.view = made.view, cache.buffer = std::move(made.object);
  run_alone(op, ctx, [&](Context& c) { pack_keys(t.view, cache.view, cache.about, c); });
  return cache;
}

void append(nb::handle packed, nb::handle k, nb::handle starts, nb::handle layout, nb::handle ctx) {
  const char* op = "append_keys";
  PackedCache& cache = read_packed(op, packed);
  const Tokens t = read_tokens(op, "k", k, layout_named(op, layout));
  std::vector<Index> at;
  if (given(starts)) at = read_indices({op, "starts"}, starts);
  const AnyView view =
      given(starts) ? AnyView::packed(at.data(), DType::i64, {static_cast<Index>(at.size())}) : AnyView();
  run_alone(op, ctx, [&](Context& c) { append_keys(t.view, cache.view, cache.about, c, view); });
}

nb::object unpack(nb::handle packed, nb::handle tokens, nb::handle layout, nb::handle ctx) {
  const char* op = "unpack_keys";
  const PackedCache& cache = read_packed(op, packed);
  const AxisOrder& order = layout_named(op, layout);
  const Index count = given(tokens) ? read_index({op, "tokens"}, tokens) : cache.about.tokens;
  require(0 <= count && count <= cache.about.tokens, ErrorKind::bad_argument, op, "tokens is ", count,
          " but ", cache.about.tokens, " are packed; ask for 0 to that many");
  const Index bshd[] = {cache.view.size[0], count, cache.about.kv_heads, cache.about.dim};
  MadeArray made = make_tokens(cache.kind, cache.buffer, cache.about.dtype, bshd, order, 4);
  const AnyView k = as_bshd(op, "k", made.view, order, false);
  run_alone(op, ctx, [&](Context& c) { unpack_keys(cache.view, cache.about, k, c); });
  return made.object;
}

DType eight_bits_named(const char* op, nb::handle h) {
  const std::string_view word = read_word({op, "dtype"}, h);
  if (word == "int8") return DType::i8;
  if (word == "e4m3") return DType::e4m3;
  throw Error(ErrorKind::bad_argument, text(op, ": dtype is \"", word, "\"; give \"int8\" or \"e4m3\""));
}

nb::object quantize(nb::handle x, nb::handle dtype, nb::handle layout, nb::handle ctx) {
  const char* op = "quantize_kv";
  const AxisOrder& order = layout_named(op, layout);
  const Tokens t = read_tokens(op, "x", x, order);
  const Index bshd[] = {t.view.size[0], t.view.size[1], t.view.size[2], t.view.size[3]};
  MadeArray out = make_tokens(t.array.kind, x, eight_bits_named(op, dtype), bshd, order, 4);
  MadeArray scale = make_tokens(t.array.kind, x, DType::f32, bshd, order, 3);
  const AnyView to = as_bshd(op, "out", out.view, order, false),
                factors = as_bshd(op, "scale", scale.view, order, false, true);
  run_alone(op, ctx, [&](Context& c) { quantize_kv(t.view, to, factors, c); });
  return nb::make_tuple(out.object, scale.object);
}

}  // namespace

void bind_kv(nb::module_& m) {
  nb::class_<PackedCache>(
      m, "PackedKeys",
      "Keys as the kernels of this machine multiply them; given to attention as k. Made by "
      "pack_keys, grown by append_keys.")
      .def_prop_ro(
          "buffer", [](const PackedCache& c) { return c.buffer; }, nb::sig("def buffer(self) -> Array"),
          "[batch kv_heads room]: move or save it beside the numbers below.")
      .def_prop_ro("tokens", [](const PackedCache& c) { return c.about.tokens; })
      .def_prop_ro("capacity", [](const PackedCache& c) { return c.about.capacity; })
      .def_prop_ro("batch", [](const PackedCache& c) { return c.view.size[0]; })
      .def_prop_ro("kv_heads", [](const PackedCache& c) { return c.about.kv_heads; })
      .def_prop_ro("dim", [](const PackedCache& c) { return c.about.dim; })
      .def_prop_ro(
          "order", [](const PackedCache& c) { return nb::str(text(c.about.order).c_str()); },
          nb::sig("def order(self) -> str"), "How a head's keys lie, e.g. [kv/16][dim][16].")
      .def_prop_ro("nbytes", [](const PackedCache& c) {
        return c.view.size[0] * static_cast<Index>(packed_key_bytes(c.about));
      });
  m.def(
      "pack_keys", pack, nb::arg("k").none(), nb::arg("capacity") = nb::none(), nb::kw_only(),
      nb::arg("layout") = "bshd", nb::arg("ctx") = nb::none(),
      nb::sig("def pack_keys(k: Array, capacity: int | None = None, *, layout: str = 'bshd', ctx: Context "
              "| None = "
              "None) -> PackedKeys"),
      "k [batch tokens kv_heads dim], f32, bf16, f16, int8 or e4m3, packed with room for `capacity` tokens a "
      "sequence "
      "(default: its own).");
  m.def("append_keys", append, nb::arg("packed").none(), nb::arg("k").none(), nb::arg("starts") = nb::none(),
        nb::kw_only(), nb::arg("layout") = "bshd", nb::arg("ctx") = nb::none(),
        nb::sig("def append_keys(packed: PackedKeys, k: Array, starts: Sequence[int] | Array | None = None, "
                "*, layout: "
                "str = 'bshd', ctx: Context | None = None) -> None"),
        "Puts k [batch new_tokens kv_heads dim] behind packed.tokens, or at one start a sequence.");
  m.def("unpack_keys", unpack, nb::arg("packed").none(), nb::arg("tokens") = nb::none(), nb::kw_only(),
        nb::arg("layout") = "bshd", nb::arg("ctx") = nb::none(),
        nb::sig("def unpack_keys(packed: PackedKeys, tokens: int | None = None, *, layout: str = 'bshd', "
                "ctx: Context "
                "| None = None) -> Array"),
        "The first tokens (default: all) as a plain array, bit for bit.");
  m.def("quantize_kv", quantize, nb::arg("x").none(), nb::kw_only(), nb::arg("dtype") = "int8",
        nb::arg("layout") = "bshd", nb::arg("ctx") = nb::none(),
        nb::sig(
            "def quantize_kv(x: ArrayT, *, dtype: str = 'int8', layout: str = 'bshd', ctx: Context | None = "
            "None) -> tuple[ArrayT, ArrayT]"),
        "x [batch tokens kv_heads dim] as int8 or e4m3 and its scales [batch tokens kv_heads], max |x| / 127 "
        "(e4m3: 448) of each row; for attention's k, v, k_scale and v_scale.");
}

}  // namespace headwise::python
