// hw.Mask: which (query, key) pairs may attend. True always means "may attend".
#include "headwise/masks/mask.h"

#include <nanobind/operators.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <deque>

#include "python/arrays/array.h"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "mask";

AnyView read_bools(const char* maker, nb::handle h, nb::handle heads) {
  const Array a = read_array(maker, "x", h);
  require(a.is_bool || a.view.dtype == DType::u8, ErrorKind::bad_dtype, maker, "x is ", a.view,
          "; give a bool array (a float mask is a bias: pass it as bias=)");
  return heads.is_none() ? a.view : unmerge_heads(a.view, read_index({maker, "heads"}, heads));
}

/// Of what operator== compares without the arrays behind it.
std::size_t hash_of(const Mask& mask) {
  std::size_t h = static_cast<std::size_t>(mask.heads());
  const auto mix = [&](Index value) {
    h = (h ^ static_cast<std::size_t>(value)) * std::size_t{0x9E3779B97F4A7C15u};
  };
  const MaskSet set = mask.set();
  for (Index n = 0; n < set.count; ++n)
    for (int i = 0; i < set.views[n].count; ++i) {
      const MaskStep& s = set.views[n].steps[i];
      for (Index value : {static_cast<Index>(s.op), s.a, s.b, s.n, s.size[2], s.size[3]}) mix(value);
    }
  return h;
}

/// The bits of a dense term: sizes, sizes of what is kept (1 where it repeats), words as bytes.
nb::tuple dense_state(const MaskStep& s) {
  Index kept[4] = {}, words = ceil_div(s.size[3], 64);
  for (int axis = 0; axis < 3; ++axis)
    words *= kept[axis] = s.words[axis] == 0 ? min_of(s.size[axis], 1) : s.size[axis];
  return nb::make_tuple(
      nb::make_tuple(s.size[0], s.size[1], s.size[2], s.size[3]), nb::make_tuple(kept[0], kept[1], kept[2]),
      nb::bytes(reinterpret_cast<const char*>(s.bits), static_cast<std::size_t>(words) * sizeof(*s.bits)));
}
Mask dense_of(const nb::tuple& state) {
  const auto sizes = nb::cast<std::array<Index, 4>>(state[0]);
  const auto kept = nb::cast<std::array<Index, 3>>(state[1]);
  const auto words = nb::cast<nb::bytes>(state[2]);
  const Index row_words = ceil_div(max_of(sizes[3], 0), 64);
  Checked rows(1);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    require(kept[axis] == sizes[axis] || (kept[axis] == 1 && sizes[axis] > 1), ErrorKind::bad_shape, kOp,
            "a pickled dense term keeps ", kept[axis], " of ", sizes[axis], " rows; the pickle is damaged");
    rows = rows * Checked(kept[axis]);
  }
  const Checked bytes = rows * Checked(row_words) * Checked(8);
  require(bytes.ok && rows.value >= 0 && static_cast<std::size_t>(bytes.value) == words.size(),
          ErrorKind::bad_shape, kOp, "a pickled dense term has ", words.size(),
          " bytes, which are not those of its sizes; the pickle is damaged");
  std::vector<std::uint8_t> open(static_cast<std::size_t>(rows.value * sizes[3]));
  for (Index row = 0; row < rows.value; ++row)
    for (Index k = 0; k < sizes[3]; ++k)
      open[static_cast<std::size_t>(row * sizes[3] + k)] =
          static_cast<std::uint8_t>(words.c_str()[row * row_words * 8 + k / 8] >> (k % 8)) & 1u;
  AnyView v = AnyView::packed(open.data(), DType::u8, {sizes[0], sizes[1], sizes[2], sizes[3]});
  const Index steps[3] = {kept[1] * kept[2] * sizes[3], kept[2] * sizes[3], sizes[3]};
  for (int axis = 0; axis < 3; ++axis) v.step[axis] = kept[axis] == sizes[axis] ? steps[axis] : 0;
  return Mask::dense(v);
}

/// Its text, and the bits of its dense terms in the order of the text.
nb::tuple state_of(const Mask& mask) {
  nb::list dense;
  const MaskSet set = mask.set();
  for (Index n = 0; n < set.count; ++n)
    for (int i = 0; i < set.views[n].count; ++i)
      if (const MaskStep& s = set.views[n].steps[i]; s.op == MaskOp::dense) dense.append(dense_state(s));
  return nb::make_tuple(to_text(mask), nb::tuple(dense));
}
Mask mask_of(const nb::tuple& state) {
  std::vector<Mask> dense;
  for (const nb::handle item : nb::cast<nb::tuple>(state[1]))
    dense.push_back(dense_of(nb::cast<nb::tuple>(item)));
  return parse_mask(nb::cast<std::string>(state[0]), dense);
}

std::vector<Index> numbers(const char* name, nb::handle h) { return read_indices({kOp, name}, h); }

Index number(const char* name, nb::handle h) { return read_index({kOp, name}, h); }

/// The builder of a kind that is made of numbers, from the list of kinds.
void def_kind(nb::class_<Mask>& mask, const MaskKind& kind) {
  static std::deque<std::string> kept;  // signatures live as long as the module
  const char* name = kind.method ? kind.method : kind.name;
  const char *first = kind.arguments[0], *second = kind.arguments[1];
  const auto signature = [&](const std::string& arguments) {
    return nb::sig(kept.emplace_back(text("def ", name, "(", arguments, ") -> Mask")).c_str());
  };
  switch (kind.form) {
    case MaskForm::bare:
      mask.def_static(
          name, [op = kind.op] { return Mask::of_kind(op, {}); }, kind.help);
      break;
    case MaskForm::one:
      mask.def_static(
          name,
          [&kind](nb::handle a) {
            const Index numbers[] = {number(kind.arguments[0], a)};
            return Mask::of_kind(kind.op, numbers);
          },
          nb::arg(first), signature(text(first, ": int")), kind.help);
      break;
    case MaskForm::two: {
      const auto make = [&kind](nb::handle a, nb::handle b) {
        const Index numbers[] = {number(kind.arguments[0], a), number(kind.arguments[1], b)};
        return Mask::of_kind(kind.op, numbers);
      };
      const std::string both = text(first, ": int, ", second, ": int");
      if (kind.second == -1)
        mask.def_static(name, make, nb::arg(first), nb::arg(second), signature(both), kind.help);
      else
        mask.def_static(name, make, nb::arg(first), nb::arg(second) = kind.second,
                        signature(text(both, " = ", kind.second)), kind.help);
      break;
    }
    case MaskForm::list:
    case MaskForm::offsets:
      mask.def_static(
          name, [&kind](nb::handle list) { return Mask::of_kind(kind.op, numbers(kind.arguments[0], list)); },
          nb::arg(first), signature(text(first, ": Sequence[int] | Array")), kind.help);
      break;
    case MaskForm::blocks:
    case MaskForm::dense:
    case MaskForm::join: break;
  }
}

void def_sliding(nb::class_<Mask>& mask) {
  mask.def_static(
      "sliding", [](nb::handle width) { return Mask::sliding(number("width", width)); }, nb::arg("width"),
      nb::sig("def sliding(width: int) -> Mask"), "The last `width` keys, the query's own included.");
}

void def_blocks(nb::class_<Mask>& mask) {
  mask.def_static(
      "blocks",
      [](nb::handle q_block, nb::handle kv_block, nb::handle rows, nb::handle columns) {
        return Mask::blocks(number("q_block", q_block), number("kv_block", kv_block), numbers("rows", rows),
                            numbers("columns", columns));
      },
      nb::arg("q_block"), nb::arg("kv_block"), nb::arg("rows"), nb::arg("columns"),
      nb::sig("def blocks(q_block: int, kv_block: int, rows: Sequence[int] | Array, columns: "
              "Sequence[int] | Array) -> "
              "Mask"),
      "Query block r may look at the kv blocks columns[rows[r]:rows[r + 1]] (CSR, ascending inside a "
      "row).");
}

}  // namespace

void bind_masks(nb::module_& m) {
  nb::class_<Mask> mask(m, "Mask", nb::is_weak_referenceable(),
                        "Which pairs of query and key may attend: a value, joined with & and |.");
  mask.def(nb::init<>(), "Everything may attend.");
  for (const MaskKind& kind : kMaskKinds) {
    def_kind(mask, kind);
    if (kind.op == MaskOp::window) def_sliding(mask);
    if (kind.op == MaskOp::blocks) def_blocks(mask);
  }
  mask.def_static(
          "dense",
          [](nb::handle x, nb::handle heads) { return Mask::dense(read_bools("Mask.dense", x, heads)); },
          nb::arg("x"), nb::arg("heads") = nb::none(),
          nb::sig("def dense(x: Array, heads: int | None = None) -> Mask"),
          "bool array, true = may attend: [q kv], [heads q kv] or [batch heads q kv] (1 repeats). Packed to "
          "bits: a copy.\n"
          "With heads: x is [batch*heads q kv].")
      .def_static(
          "from_blocked",
          [](nb::handle x, nb::handle heads) {
            return Mask::from_blocked(read_bools("Mask.from_blocked", x, heads));
          },
          nb::arg("x"), nb::arg("heads") = nb::none(),
          nb::sig("def from_blocked(x: Array, heads: int | None = None) -> Mask"),
          "The same with the other polarity: true = may not attend.")
      .def_static(
          "per_head",
          [](nb::sequence masks) {
            std::vector<Mask> each;
            for (const nb::handle item : masks) {
              if (!nb::isinstance<Mask>(item))
                refuse_type({kOp, "an entry of per_head"}, item, "a Mask per head");
              each.push_back(nb::cast<const Mask&>(item));
            }
            return Mask::per_head(each);
          },
          nb::arg("masks"), nb::sig("def per_head(masks: Sequence[Mask]) -> Mask"), "One mask per head.")
      .def_static(
          "parse",
          [](nb::handle words) {
            return parse_mask(read_word({kOp, "text"}, words));
          },
          nb::arg("text"), nb::sig("def parse(text: str) -> Mask"),
          "\"causal & window(256, 0) | prefix(4)\"; the inverse of str(mask).")
      .def(
          "__init__",
          [](Mask* self, nb::handle words) {
            new (self) Mask(parse_mask(read_word({kOp, "text"}, words)));
          },
          nb::arg("text"), nb::sig("def __init__(self, text: str) -> None"),
          "The same as Mask.parse(text); a compiled graph may hold this call.")
      .def(nb::self & nb::self, nb::sig("def __and__(self, other: Mask, /) -> Mask"))
      .def(nb::self | nb::self, nb::sig("def __or__(self, other: Mask, /) -> Mask"))
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"),
           "The same expression, term by term.")
      .def("__hash__", &hash_of)
      .def("__getstate__", &state_of, nb::sig("def __getstate__(self) -> tuple[str, tuple[object, ...]]"),
           "What pickle and copy keep: the text, and the bits of dense terms.")
      .def(
          "__setstate__", [](Mask& self, const nb::tuple& state) { new (&self) Mask(mask_of(state)); },
          nb::sig("def __setstate__(self, state: tuple[str, tuple[object, ...]], /) -> None"))
      .def(
          "may_attend",
          [](const Mask& self, nb::handle q, nb::handle k, nb::handle sequence, nb::handle head,
             nb::handle q_start) {
            const MaskSubject at{number("sequence", sequence), number("head", head),
                                 number("q_start", q_start)};
            return self.may_attend(number("q", q), number("k", k), at);
          },
          nb::arg("q"), nb::arg("k"), nb::arg("sequence") = 0, nb::arg("head") = 0, nb::arg("q_start") = 0,
          nb::sig("def may_attend(self, q: int, k: int, sequence: int = 0, head: int = 0, q_start: int = 0) "
                  "-> bool"),
          "The definition: may the query at position q look at the key at position k?")
      .def_prop_ro("heads", &Mask::heads, "1, or the number of per-head masks.")
      .def("__str__", [](const Mask& self) { return to_text(self); })
      .def("__repr__", [](const Mask& self) -> std::string {
        const std::string words = to_text(self);
        try {
          (void)parse_mask(words);
        } catch (const Error&) {  // dense bits have no text that can be read again
          return "<Mask " + words + ">";
        }
        return "Mask.parse(\"" + words + "\")";
      });
}

}  // namespace headwise::python
