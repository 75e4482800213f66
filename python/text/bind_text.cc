// hw.TextEncoder: a pretrained encoder from its folder, texts to vectors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "headwise/base/context.h"
#include "headwise/ops/device/named.h"
#include "headwise/text/text_encoder.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

struct TextEncoderBox {
  TextEncoderBox(const std::string& folder, const TextEncoderOptions& options) : encoder(folder, options) {}
  TextEncoder encoder;
  StepMemory memory;
  std::mutex turn;  // callers take turns on its memory
};

nb::object embed(TextEncoderBox& box, const std::vector<std::string>& texts, nb::handle ctx) {
  const Turn turn(box.turn);
  auto vectors = std::make_unique<Tensor>();
  run_alone(context_of("text encoder", ctx),
            [&](Context& c) { *vectors = box.encoder.embed(texts, c, box.memory); });
  const std::size_t sizes[] = {texts.size(), static_cast<std::size_t>(box.encoder.model_dim())};
  void* data = vectors->view().data;
  const nb::capsule owner(vectors.release(), [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, float>(data, 2, sizes, owner));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<TextEncoderBox>(m, "TextEncoder",
                             "A pretrained BERT-style encoder with its tokenizer: texts to vectors.")
      .def(
          "__init__",
          [](TextEncoderBox* self, const std::string& folder, Index max_tokens, bool normalized,
             const std::string& device) {
            const Device there = read_device("text encoder", device);
            new (self) TextEncoderBox(folder, {.max_tokens = max_tokens, .normalized = normalized});
            if (there.is_cpu()) return;
            Context ctx({.threads = 1});
            self->encoder.to(there, ctx);
          },
          nb::arg("folder"), nb::kw_only(), nb::arg("max_tokens") = 0, nb::arg("normalized") = true,
          nb::arg("device") = "cpu",
          nb::sig("def __init__(self, folder: str, *, max_tokens: int = 0, normalized: bool = True, device: "
                  "str = 'cpu') -> None"),
          "folder: config.json, model.safetensors and vocab.txt, as sentence-transformers lays them out.\n"
          "device: cpu, cuda, cuda:1 or auto, where the encoder runs.")
      .def("embed", &embed, nb::arg("texts"), nb::kw_only(), nb::arg("ctx") = nb::none(),
           nb::sig("def embed(self, texts: Sequence[str], *, ctx: Context | None = None) -> Array"),
           "A NumPy array [texts model_dim], float32; a row depends on its text alone.")
      .def(
          "tokens",
          [](const TextEncoderBox& box, const std::string& s) {
            return box.encoder.tokenizer().encode(s, {.around = true, .most = box.encoder.max_tokens()}).ids;
          },
          nb::arg("text"), nb::sig("def tokens(self, text: str) -> list[int]"),
          "The ids a text is read as, with [CLS] and [SEP].")
      .def_prop_ro("device", [](const TextEncoderBox& box) { return words_of(box.encoder.device()); })
      .def_prop_ro("model_dim", [](const TextEncoderBox& box) { return box.encoder.model_dim(); })
      .def_prop_ro("max_tokens", [](const TextEncoderBox& box) { return box.encoder.max_tokens(); });
}

}  // namespace headwise::python
