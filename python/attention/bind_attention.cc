// hw.attention and hw.explain: one list of arguments for both.
#include <nanobind/stl/string.h>

#include "headwise/ops/explain/explain.h"

#include "headwise/base/context.h"
#include "python/arrays/bind.h"
#include "python/attention/arguments.h"
#include "python/attention/call.h"

namespace headwise::python {
namespace {

/// "(q: ArrayT, ..., *, scale: ...)"
std::string parameters() {
  std::string all;
  for (std::size_t i = 0; i < kArgumentCount; ++i)
    all += text(i == 0 ? "(" : ", ", i == kByPlace ? "*, " : "", spelled(kArguments[i]));
  return all + ")";
}

nb::handle list_helper(const char* name) {
  return nb::object(nb::module_::import_("headwise._lists").attr(name)).release();
}

/// Lists of arrays are joined in Python: they cost a copy whatever the language.
nb::object attend_lists(const AttentionWords& w) {
  static const nb::handle helper = list_helper("attention");
  nb::dict words;
  for (const Argument& a : kArguments) words[a.name] = w.*a.word;
  return helper(**words);
}

/// Measuring takes about 100 ms of this machine; the answer for a number of threads is kept.
std::string explain_call(AttentionCall& call) {
  if (call.on_cuda()) {
    const Turn turn(call.context().engine().turn);
    return explain(call.plan());
  }
  static std::unordered_map<int, Roofline> measured;
  CallContext::Engine& engine = call.context().engine();
  const int threads = engine.context.threads();
  auto known = measured.find(threads);
  if (known == measured.end()) {
    Roofline now;
    {
      const Flight without_gil;
      now = measure_roofline(threads);
    }
    known = measured.emplace(threads, now).first;
  }
  const Turn turn(engine.turn);
  return explain(call.plan(), {.roofline = &known->second});
}

bool is_list(nb::handle h) { return PyList_Check(h.ptr()) || PyTuple_Check(h.ptr()); }

template <std::size_t>
using Handle = nb::handle;

template <class F, std::size_t... kPlaces, std::size_t... kNames, class... Extra>
void def_with(nb::module_& m, const char* name, F f, std::index_sequence<kPlaces...>,
              std::index_sequence<kNames...>, const Extra&... extra) {
  m.def(
      name,
      [f](Handle<kPlaces>... by_place, Handle<kNames>... by_name) {
        AttentionWords words;
        ((words.*kArguments[kPlaces].word = by_place), ...);
        ((words.*kArguments[kByPlace + kNames].word = by_name), ...);
        return f(words);
      },
      declared<kArguments[kPlaces]>()..., nb::kw_only(), declared<kArguments[kByPlace + kNames]>()...,
      extra...);
}
template <class F, class... Extra>
void def_attention(nb::module_& m, const char* name, F f, const Extra&... extra) {
  def_with(m, name, f, std::make_index_sequence<kByPlace>(),
           std::make_index_sequence<kArgumentCount - kByPlace>(), extra...);
}

}  // namespace

void bind_attention(nb::module_& m) {
  static const std::string attention_signature =
      text("def attention", parameters(), " -> ArrayT | AttentionResult");
  static const std::string explain_signature = text("def explain", parameters(), " -> str");
  def_attention(
      m, "attention",
      [](const AttentionWords& words) {
        return is_list(words.q) ? attend_lists(words) : AttentionCall(words).run();
      },
      nb::sig(attention_signature.c_str()),
      "Multi-head attention of q [batch tokens heads dim] over k and v, heads shared by division.\n\n"
      "Returns out, or the named tuple (out, lse, probe) when lse or a probe is asked for. docs/python.md "
      "has every\n"
      "argument.");
  def_attention(
      m, "explain",
      [](const AttentionWords& words) {
        require(!is_list(words.q), ErrorKind::bad_argument, "explain",
                "q is a list of arrays; give [tokens heads dim] with q_offsets and kv_offsets");
        AttentionCall call(words);
        return explain_call(call);
      },
      nb::sig(explain_signature.c_str()),
      "Which kernel this call would take and why, its cost against what this machine can do. Takes "
      "attention's arguments;\n"
      "runs nothing but a measurement of the machine, once per number of threads.");
}

}  // namespace headwise::python
