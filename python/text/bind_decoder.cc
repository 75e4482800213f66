// hw.Decoder's core: a language model from its file: tokens, logits, requests and the events of their steps.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "headwise/decoder/chat_template.h"
#include "headwise/decoder/decoder_host.h"
#include "headwise/decoder/files/save_folder.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/values.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

constexpr const char* kOp = "decoder";

/// Callers take turns; all of them share the steps of one generator.
struct DecoderBox {
  std::unique_ptr<DecoderHost> host;
  std::mutex turn;
  const DecoderConfig& config() const { return host->model().config(); }
};

/// f(host, context) in its turn, without the GIL.
template <class F>
void with_host(DecoderBox& box, nb::handle ctx, F&& f) {
  const Turn turn(box.turn);
  run_alone(context_of(kOp, ctx), [&](Context& c) { f(*box.host, c); });
}

template <class T>
nb::object array_of(std::vector<T> values, std::vector<std::size_t> sizes) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  T* data = held->data();
  const nb::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, sizes.size(), sizes.data(), owner));
}

/// Three arrays [tokens layers heads]: entropy, top_weight, first_mass; of models with cross-attention a
/// fourth one, [tokens layers heads states].
nb::object heads_of(const DecoderConfig& c, const std::vector<HeadStats>& rows) {
  const std::vector<std::size_t> sizes = {rows.size(), static_cast<std::size_t>(c.layers),
                                          static_cast<std::size_t>(c.heads)};
  const auto joined = [&](std::vector<float> HeadStats::*part) {
    std::vector<float> all;
    for (const HeadStats& h : rows) all.insert(all.end(), (h.*part).begin(), (h.*part).end());
    return array_of(std::move(all), sizes);
  };
  const nb::tuple own = nb::make_tuple(joined(&HeadStats::entropy), joined(&HeadStats::top_weight),
                                       joined(&HeadStats::first_mass));
  if (!c.cross || rows.empty()) return own;
  std::vector<float> all;
  for (const HeadStats& h : rows) all.insert(all.end(), h.cross_weights.begin(), h.cross_weights.end());
  const std::size_t states = rows[0].cross_weights.size() / (sizes[1] * sizes[2]);
  return own + nb::make_tuple(array_of(std::move(all), {sizes[0], sizes[1], sizes[2], states}));
}

/// An encoder's states, as a model's cross heads look at them.
struct MemoryBox {
  std::shared_ptr<const DecoderMemory> memory;
};
const DecoderMemory* memory_of(nb::handle memory) {
  return memory.is_none() ? nullptr : nb::cast<const MemoryBox&>(memory).memory.get();
}
using States = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::object event_of(const DecoderConfig& c, const GenerateEvent& e) {
  nb::list drawn;
  for (const Drawn& d : e.drawn) {
    nb::list top;
    for (const TokenLogprob& t : d.top) top.append(nb::make_tuple(t.token, t.logprob));
    drawn.append(nb::make_tuple(d.token, d.logprob, top));
  }
  return nb::make_tuple(e.id, e.tokens, e.text, drawn, e.heads.empty() ? nb::none() : heads_of(c, e.heads),
                        std::string(name_of(e.finish)), e.error);
}

/// The fields of a request by the names of hw.Decoder.generate.
GenerateRequest request_of(const std::vector<TokenId>& prompt, const nb::dict& options) {
  GenerateRequest r;
  r.prompt = prompt;
  for (const auto& [key, value] : options) {
    const std::string name = nb::cast<std::string>(key);
    const ArgName at{"generate", name.c_str()};
    if (name == "max_tokens")
      r.max_tokens = read_index(at, value);
    else if (name == "min_tokens")
      r.min_tokens = read_index(at, value);
    else if (name == "temperature")
      r.sampling.temperature = read_number(at, value);
    else if (name == "top_k")
      r.sampling.top_k = read_index(at, value);
    else if (name == "top_p")
      r.sampling.top_p = read_number(at, value);
    else if (name == "min_p")
      r.sampling.min_p = read_number(at, value);
    else if (name == "repetition_penalty")
      r.sampling.repetition_penalty = read_number(at, value);
    else if (name == "frequency_penalty")
      r.sampling.frequency_penalty = read_number(at, value);
    else if (name == "presence_penalty")
      r.sampling.presence_penalty = read_number(at, value);
    else if (name == "seed")
      r.sampling.seed = read_seed(at, value);
    else if (name == "logit_bias")
      r.sampling.bias = nb::cast<std::vector<std::pair<TokenId, double>>>(value);
    else if (name == "stop")
      r.stop = nb::cast<std::vector<std::string>>(value);
    else if (name == "logprobs")
      r.logprobs = read_index(at, value);
    else if (name == "ignore_end")
      r.ignore_end = read_bool(at, value);
    else if (name == "heads")
      r.watch = read_bool(at, value);
    else if (name == "priority")
      r.priority = read_index(at, value);
    else if (name == "memory" && !value.is_none())
      r.memory = nb::cast<const MemoryBox&>(value).memory;
    else if (name == "memory")
      continue;
    else
      throw Error(ErrorKind::bad_argument, text("generate: there is no option \"", name, "\""));
  }
  return r;
}

void open_box(DecoderBox* self, const std::string& path, const std::string& dtype, const std::string& rows,
              const std::string& kv_dtype, Index kv_mib, nb::handle ctx) {
  DecoderHostOptions o;
  o.model.dtype = weights_dtype_named("decoder: dtype", dtype);
  o.model.rounded_rows = rounded_rows_named("decoder: rows", rows);
  o.kv_dtype = kv_dtype_named("decoder: kv_dtype", kv_dtype);
  require(kv_mib >= 1 && kv_mib <= Index{1} << 24, ErrorKind::bad_argument, kOp, "kv_mib is ", kv_mib,
          "; give MiB from 1 up");
  o.kv_bytes = kv_mib << 20;
  std::unique_ptr<DecoderHost> host;
  run_alone(context_of(kOp, ctx), [&](Context& c) { host = std::make_unique<DecoderHost>(path, o, c); });
  new (self) DecoderBox{std::move(host), {}};
}

nb::object logits(DecoderBox& box, const std::vector<TokenId>& ids, nb::handle memory, nb::handle ctx) {
  DecoderRows rows;
  const DecoderMemory* seen = memory_of(memory);
  with_host(box, ctx,
            [&](DecoderHost& h, Context& c) { rows = h.rows(ids, {.logits = true, .memory = seen}, c); });
  return array_of(std::move(rows.logits), {ids.size(), static_cast<std::size_t>(box.config().vocabulary)});
}

void bind_requests(nb::class_<DecoderBox>& c) {
  c.def(
       "add",
       [](DecoderBox& box, const std::vector<TokenId>& prompt, const nb::dict& options) {
         GenerateRequest r = request_of(prompt, options);
         const Turn turn(box.turn);
         return box.host->add(std::move(r));
       },
       nb::arg("prompt"), nb::arg("options"),
       nb::sig("def add(self, prompt: Sequence[int], options: dict[str, Any]) -> int"),
       "The number of a new request.")
      .def(
          "next",
          [](DecoderBox& box, const std::vector<RequestId>& ids, nb::handle ctx) {
            std::vector<GenerateEvent> events;
            with_host(box, ctx, [&](DecoderHost& h, Context& run) { events = h.next(ids, run); });
            nb::list out;
            for (const GenerateEvent& e : events) out.append(event_of(box.config(), e));
            return out;
          },
          nb::arg("requests"), nb::arg("ctx").none(),
          nb::sig("def next(self, requests: Sequence[int], ctx: Context | None) -> list[tuple[Any, ...]]"),
          "What came of these requests; one step is computed when nothing waits.")
      .def(
          "drop",
          [](DecoderBox& box, const std::vector<RequestId>& ids) {
            const Turn turn(box.turn);
            box.host->drop(ids);
          },
          nb::arg("requests"), nb::sig("def drop(self, requests: Sequence[int]) -> None"),
          "Ends requests that nobody waits for.");
}

void bind_tokens(nb::class_<DecoderBox>& c) {
  c.def(
       "tokenize",
       [](const DecoderBox& box, const std::string& s, bool specials, bool begin) {
         return box.host->need_tokenizer("tokenize").encode(s, {.specials = specials, .begin = begin});
       },
       nb::arg("text"), nb::kw_only(), nb::arg("specials") = true, nb::arg("begin") = true,
       "The ids of a text; special tokens spelt out in it become themselves, the first token stands first.")
      .def(
          "token_bytes",
          [](const DecoderBox& box, const std::vector<TokenId>& ids) {
            const std::string s = box.host->need_tokenizer("detokenize").decode(ids);
            return nb::bytes(s.data(), s.size());
          },
          nb::arg("ids"), nb::sig("def token_bytes(self, ids: Sequence[int]) -> bytes"),
          "The exact bytes of a text that begins with these tokens.")
      .def(
          "chat_tokens",
          [](const DecoderBox& box, const std::vector<std::pair<std::string, std::string>>& messages) {
            const auto chat = ChatTemplate::find(box.host->chat_template());
            require(chat.has_value(), ErrorKind::unsupported, "chat",
                    "the model's template for conversations is not known; give a prompt");
            std::vector<ChatMessage> all;
            for (const auto& [role, content] : messages) all.push_back({role, content});
            return chat->encode(all, box.host->need_tokenizer("chat"));
          },
          nb::arg("messages"),
          nb::sig("def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]"),
          "The ids of a conversation of (role, content).")
      .def_prop_ro("begin_token",
                   [](const DecoderBox& box) {
                     const Tokenizer* t = box.host->tokenizer();
                     return t == nullptr ? -1 : t->begin_token();
                   })
      .def_prop_ro("end_tokens", [](const DecoderBox& box) {
        const Tokenizer* t = box.host->tokenizer();
        return t == nullptr ? std::vector<TokenId>{} : t->end_tokens();
      });
}

}  // namespace

void save_transformer(const Transformer& model, ParamSet& params, const std::string& folder,
                      const std::string& tokenizer_json, const std::vector<Index>& ends) {
  save_decoder(folder, model, params, {.tokenizer_json = tokenizer_json, .ends = ends});
}

void bind_decoder(nb::module_& m) {
  nb::class_<MemoryBox>(m, "DecoderMemory", "An encoder's states, as a decoder's cross heads look at them.")
      .def_prop_ro(
          "states", [](const MemoryBox& box) { return box.memory->tokens(); }, "How many there are.");
  nb::class_<DecoderBox> c(m, "DecoderCore", "What hw.Decoder is made of.");
  c.def("__init__", &open_box, nb::arg("path"), nb::arg("dtype"), nb::arg("rows"), nb::arg("kv_dtype"),
        nb::arg("kv_mib"), nb::arg("ctx").none(),
        nb::sig("def __init__(self, path: str, dtype: str, rows: str, kv_dtype: str, kv_mib: int, ctx: "
                "Context | None) "
                "-> None"));
  bind_requests(c);
  bind_tokens(c);
  c.def("logits", &logits, nb::arg("ids"), nb::arg("memory").none(), nb::arg("ctx").none(),
        nb::sig("def logits(self, ids: Sequence[int], memory: DecoderMemory | None, ctx: Context | None) -> "
                "Array"),
        "[tokens vocabulary], float32.")
      .def(
          "watch",
          [](DecoderBox& box, const std::vector<TokenId>& ids, nb::handle memory, nb::handle ctx) {
            DecoderRows rows;
            const DecoderMemory* seen = memory_of(memory);
            with_host(box, ctx, [&](DecoderHost& h, Context& run) {
              rows = h.rows(ids, {.heads = true, .memory = seen}, run);
            });
            return heads_of(box.config(), rows.heads);
          },
          nb::arg("ids"), nb::arg("memory").none(), nb::arg("ctx").none(),
          nb::sig("def watch(self, ids: Sequence[int], memory: DecoderMemory | None, ctx: Context | None) -> "
                  "tuple[Array, ...]"),
          "Entropy, top weight and weight on the first token: [tokens layers heads] each; of models with "
          "cross-attention the weights on every state, [tokens layers heads states].")
      .def(
          "remember",
          [](DecoderBox& box, const States& states, nb::handle ctx) {
            MemoryBox made;
            const ConstView view =
                ConstView::packed(states.data(), DType::f32,
                                  {static_cast<Index>(states.shape(0)), static_cast<Index>(states.shape(1))});
            with_host(box, ctx, [&](DecoderHost& h, Context& run) {
              made.memory = std::make_shared<const DecoderMemory>(h.model(), view, run);
            });
            return made;
          },
          nb::arg("states"), nb::arg("ctx").none(),
          nb::sig("def remember(self, states: Array, ctx: Context | None) -> DecoderMemory"),
          "An encoder's states [states model_dim] as the cross heads look at them.")
      .def_prop_ro(
          "config",
          [](const DecoderBox& box) {
            const DecoderConfig& d = box.config();
            nb::dict out;
            out["family"] = d.family;
            out["layers"] = d.layers, out["model_dim"] = d.model_dim, out["feed_dim"] = d.feed_dim;
            out["heads"] = d.heads, out["kv_heads"] = d.kv_heads, out["head_dim"] = d.head_dim;
            out["vocabulary"] = d.vocabulary, out["positions"] = d.positions;
            out["weight_bytes"] = box.host->model().weight_bytes();
            if (d.cross) {
              nb::list heads;
              for (const CrossHead& a : d.alignment) heads.append(nb::make_tuple(a.layer, a.head));
              out["alignment_heads"] = heads;
            }
            return out;
          },
          nb::sig("def config(self) -> dict[str, Any]"));
}

}  // namespace headwise::python
