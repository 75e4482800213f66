// hw.Mha, hw.Gqa, ...: the fields of every head, from which Python makes its classes, and what a head
// declares.
#include <map>
#include <mutex>

#include "headwise/heads/any_head.h"
#include "headwise/heads/list.inc"
#include "python/arrays/bind.h"
#include "python/arrays/values.h"
#include "python/attention/heads.h"

namespace headwise::python {
namespace {

nb::object word(std::string_view s) { return nb::str(s.data(), s.size()); }
nb::object value(Index x) { return nb::int_(x); }
nb::object value(double x) { return nb::float_(x); }
nb::object value(bool x) { return nb::bool_(x); }
template <class E>
requires std::is_enum_v<E> nb::object value(E x) { return word(names_of(E{})[static_cast<std::size_t>(x)]); }

/// The words a field may hold; None for numbers.
template <class T>
nb::object words_of(T x) {
  if constexpr (std::is_enum_v<T>) {
    nb::list all;
    for (const std::string_view s : names_of(x)) all.append(word(s));
    return nb::tuple(all);
  } else {
    return nb::none();
  }
}

/// [(name, meets, ((field, default, words, help), ...)), ...]
nb::list head_fields() {
  nb::list all;
  AllHeads::each([&]<class H>(Type<H>) {
    nb::list fields;
    each_field<H>([&](const auto& f) {
      const auto start = typename H::Config{}.*f.member;
      fields.append(nb::make_tuple(word(f.name), value(start), words_of(start), word(f.help)));
    });
    all.append(nb::make_tuple(word(H::name), word(H::meets), nb::tuple(fields)));
  });
  return all;
}

nb::dict head_info(nb::handle head, nb::handle model_dim, nb::handle layer, nb::handle depth) {
  const char* op = "head_info";
  ParamSet params;
  const AnyHead made = make_head(settings_of(op, head), params,
                                 {read_index({op, "layer"}, layer), read_index({op, "depth"}, depth),
                                  read_index({op, "model_dim"}, model_dim)});
  const Widths w = made.widths();
  nb::dict info, widths, parameters;
  widths["q"] = w.q, widths["k"] = w.k, widths["v"] = w.v, widths["out"] = w.out;
  for (const Param& p : params.all()) {
    nb::list sizes;
    for (int axis = 0; axis < p.value.rank; ++axis) sizes.append(p.value.size[axis]);
    parameters[word(p.name)] = nb::tuple(sizes);
  }
  info["settings"] = word(made.settings()), info["meets"] = word(made.meets());
  info["widths"] = widths, info["parameters"] = parameters;
  const HeadSpec spec = made.spec();
  info["attends"] = nb::make_tuple(spec.normal_heads(), spec.v.heads, spec.v.dim);
  return info;
}

}  // namespace

std::string settings_of(const char* op, nb::handle head) {
  if (PyUnicode_Check(head.ptr())) return std::string(read_word({op, "head"}, head));
  if (!nb::hasattr(head, "settings"))
    refuse_type({op, "head"}, head,
                "a head such as headwise.Gqa(heads=8, kv_heads=2), or its settings as text");
  return std::string(read_word({op, "head"}, nb::object(head.attr("settings"))));
}

const NamedHead& head_named(const char* op, nb::handle head, Index model_dim) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, Index>, NamedHead>
      known;  // one entry a setting: nodes stay in place
  const std::pair<std::string, Index> key{settings_of(op, head), model_dim};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  ParamSet params;
  const AnyHead made = make_head(key.first, params, {0, 1, model_dim});
  NamedHead n{.spec = made.spec()};
  HeadInputs inputs;
  HeadGrads grads;
  made.bind(inputs, grads);
  if (inputs.scale.given()) n.scale = load_double(inputs.scale.data, inputs.scale.dtype, 0);
  for (const AnyHead::Stage& s : made.stages())
    if (s.table->name == Entmax::name) {
      const Entmax::Config& c = static_cast<const Entmax*>(s.head.get())->config();
      n.alpha = c.alpha, n.learns_alpha = c.learned;
    }
  return known.emplace(key, n).first->second;
}

void bind_heads(nb::module_& m) {
  m.def("head_fields", &head_fields, nb::sig("def head_fields() -> list[tuple[str, str, tuple[Any, ...]]]"),
        "Every head: its name, where its heads meet, and its fields as (name, default, words, help).");
  m.def(
      "head_info", &head_info, nb::arg("head"), nb::arg("model_dim"), nb::arg("layer") = 0,
      nb::arg("depth") = 1,
      nb::sig("def head_info(head: Head | str, model_dim: int, layer: int = 0, depth: int = 1) -> dict[str, "
              "Any]"),
      "A head in a layer: its settings filled in, where its heads meet, rows of its projections, the "
      "parameters it\ndeclares with their sizes, and what it attends with: heads of the normalizer, heads "
      "and "
      "columns of the output.");
}

}  // namespace headwise::python
