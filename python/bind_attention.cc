// hw.attention and hw.explain: one list of arguments for both.
#include <nanobind/stl/string.h>

#include "headwise/ops/explain.h"
#include "python/bind.h"
#include "python/call.h"

namespace headwise::python {
namespace {

constexpr const char* kParameters =
    "(q: ArrayT, k: ArrayT | PackedKeys, v: ArrayT, mask: Mask | Sequence[Mask] | None = None, *, scale: "
    "float | Array | "
    "None = None, "
    "softcap: float | None = None, bias: Array | None = None, alibi: bool | Array | None = None, relative: "
    "T5 | None = "
    "None, sinks: Array | None = None, gate: Array | None = None, dropout: float = 0.0, seed: int = 0, "
    "q_start: int | "
    "Sequence[int] | Array = 0, q_offsets: Sequence[int] | Array | None = None, kv_offsets: Sequence[int] | "
    "Array | None = "
    "None, k_scale: Array | None = None, v_scale: Array | None = None, layout: str = 'bshd', out: ArrayT | "
    "None = None, "
    "return_lse: bool = False, probe: Probe | Scores | None = None, kernels: str | Sequence[str] | None = "
    "None, ctx: "
    "Context | None = None, head: Head | str | None = None, coefficients: dict[str, Array] | None = None, "
    "pages: "
    "Pages | None = None)";

nb::handle list_helper(const char* name) {
  return nb::object(nb::module_::import_("headwise._lists").attr(name)).release();
}

/// Lists of arrays are joined in Python: they cost a copy whatever the language.
nb::object attend_lists(const AttentionWords& w) {
  static const nb::handle helper = list_helper("attention");
  return helper(w.q, w.k, w.v, w.mask, nb::arg("scale") = w.scale, nb::arg("softcap") = w.softcap,
                nb::arg("bias") = w.bias, nb::arg("alibi") = w.alibi, nb::arg("relative") = w.relative,
                nb::arg("sinks") = w.sinks, nb::arg("gate") = w.gate, nb::arg("dropout") = w.dropout,
                nb::arg("seed") = w.seed, nb::arg("q_start") = w.q_start, nb::arg("q_offsets") = w.q_offsets,
                nb::arg("kv_offsets") = w.kv_offsets, nb::arg("k_scale") = w.k_scale,
                nb::arg("v_scale") = w.v_scale, nb::arg("layout") = w.layout, nb::arg("out") = w.out,
                nb::arg("return_lse") = w.return_lse, nb::arg("probe") = w.probe,
                nb::arg("kernels") = w.kernels, nb::arg("ctx") = w.ctx, nb::arg("head") = w.head,
                nb::arg("coefficients") = w.coefficients, nb::arg("pages") = w.pages);
}

/// Measuring takes about 100 ms of this machine; the answer for a number of threads is kept.
std::string explain_call(AttentionCall& call) {
  if (call.on_cuda()) return call.explain_cuda();
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

template <class F, class... Extra>
void def_attention(nb::module_& m, const char* name, F f, const Extra&... extra) {
  m.def(
      name,
      [f](nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle scale, nb::handle softcap,
          nb::handle bias, nb::handle alibi, nb::handle relative, nb::handle sinks, nb::handle gate,
          nb::handle dropout, nb::handle seed, nb::handle q_start, nb::handle q_offsets,
          nb::handle kv_offsets, nb::handle k_scale, nb::handle v_scale, nb::handle layout, nb::handle out,
          nb::handle return_lse, nb::handle probe, nb::handle kernels, nb::handle ctx, nb::handle head,
          nb::handle coefficients, nb::handle pages) {
        return f(AttentionWords{q,         k,          v,       mask,    scale,        softcap, bias,
                                alibi,     relative,   sinks,   gate,    dropout,      seed,    q_start,
                                q_offsets, kv_offsets, k_scale, v_scale, layout,       out,     return_lse,
                                probe,     kernels,    ctx,     head,    coefficients, pages});
      },
      nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("mask") = nb::none(),
      nb::kw_only(), nb::arg("scale") = nb::none(), nb::arg("softcap") = nb::none(),
      nb::arg("bias") = nb::none(), nb::arg("alibi") = nb::none(), nb::arg("relative") = nb::none(),
      nb::arg("sinks") = nb::none(), nb::arg("gate") = nb::none(), nb::arg("dropout") = 0.0,
      nb::arg("seed") = 0, nb::arg("q_start") = 0, nb::arg("q_offsets") = nb::none(),
      nb::arg("kv_offsets") = nb::none(), nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
      nb::arg("layout") = "bshd", nb::arg("out") = nb::none(), nb::arg("return_lse") = false,
      nb::arg("probe") = nb::none(), nb::arg("kernels") = nb::none(), nb::arg("ctx") = nb::none(),
      nb::arg("head") = nb::none(), nb::arg("coefficients") = nb::none(), nb::arg("pages") = nb::none(),
      extra...);
}

}  // namespace

void bind_attention(nb::module_& m) {
  static const std::string attention_signature =
      text("def attention", kParameters, " -> ArrayT | AttentionResult");
  static const std::string explain_signature = text("def explain", kParameters, " -> str");
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
