// Attention maps of a model for one text: what each head of each layer weighs, with the text's own tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/text/text_encoder.h"
#include "headwise/view/attention_maps.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The first chunk of a text, as the recogniser reads it.
AttentionMaps maps_of(const Recognizer& recognizer, const std::string& text, Session& session);
/// A text, or two of them as [CLS] text [SEP] pair [SEP].
AttentionMaps maps_of(const TextEncoder& encoder, const std::string& text, const std::string& pair,
                      Session& session);
/// Of whichever of these the folder holds.
AttentionMaps maps_of_folder(const std::string& folder, const std::string& text, const std::string& pair,
                             Session& session);

}  // namespace headwise
#pragma GCC visibility pop
