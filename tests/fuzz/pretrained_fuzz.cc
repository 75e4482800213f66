// Fuzzes the loader of pretrained encoders: settings, then a NUL, then safetensors; a model that loads also
// runs.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/base/context.h"
#include "headwise/base/error.h"
#include "headwise/model/hf_bert.h"
#include "headwise/model/hf_config.h"
#include "tests/model/scratch_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  static const ScratchFolder folder;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = all.find('\0');
  if (cut == std::string_view::npos) {
    try {
      bert_tokenizer_config(JsonObject(all, "fuzz"));
    } catch (const Error&) {
    }
    return 0;
  }
  folder.file("config.json", all.substr(0, cut));
  folder.file("model.safetensors", all.substr(cut + 1));
  try {
    BertWeights weights(folder.path());
    // Every size was found in the file: a model is never larger than a few times the input.
    ParamSet params = ParamSet::blank();
    const Transformer model(params, weights.config());
    if (params.count() > static_cast<Index>(size)) std::abort();
    weights.load(params);
    Context ctx({.threads = 1});
    StepMemory memory;
    Call call{.ctx = ctx, .memory = memory};
    std::int32_t id = 0;
    model.forward({.ids = AnyView::packed(&id, DType::i32, {1}), .sequences = {.tokens = 1}}, call, nullptr);
  } catch (const Error&) {
  }
  return 0;
}
