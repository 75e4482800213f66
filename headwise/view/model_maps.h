// Attention maps of a model for one text: what each head of each layer weighs, with the text's own tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/text/text_encoder.h"
#include "headwise/translation/translator.h"
#include "headwise/view/attention_maps.h"
#include "headwise/view/decoder/decoder_maps.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The first chunk of a text, as the recogniser reads it.
AttentionMaps maps_of(const Recognizer& recognizer, const std::string& text, Session& session);
/// A text, or two of them as [CLS] text [SEP] pair [SEP].
AttentionMaps maps_of(const TextEncoder& encoder, const std::string& text, const std::string& pair,
                      Session& session);

/// Cross-attention over a sentence and its translation, as the steps that write it; no pair: the model's own.
AttentionMaps maps_of(const Translator& model, const std::string& text, const std::string& pair,
                      Session& session);

/// What a model is asked to look at.
struct ModelText {
  std::string text, pair = {};
  DecoderViewOptions decoder = {};
};
/// Of whichever of these the path names: a recogniser, an encoder, a translator or a decoder.
AttentionMaps maps_of_model(const std::string& path, const ModelText& what, Session& session);
/// A second model reads what the first read, its generated tokens included. The page calls both by their
/// names.
void add_other(std::vector<AttentionMaps>& all, const std::string& path, const std::string& other,
               const ModelText& what, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
