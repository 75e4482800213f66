// hf_config: a decoder's config.json in Hugging Face's words, read as a DecoderConfig or refused by key.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/decoder/files/config.h"
#include "headwise/model/json_object.h"

#pragma GCC visibility push(default)
namespace headwise {

/// model_type gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2 or gemma3_text. A key that changes the
/// mathematics in a way that is not computed is refused with its value; others are passed over.
DecoderConfig hf_decoder_config(const JsonObject& json);

}  // namespace headwise
#pragma GCC visibility pop
