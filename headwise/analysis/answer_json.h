// answer_json: an answer of a recogniser, and why, as one JSON object; the command line, C and Python say it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/analysis/explain.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The likeliest labels, best first: `top` of them, or as many as were given where those are more.
std::vector<Index> likeliest(const Prediction& prediction, Index top);

/// {"text", "labels", "confidence", "out_of_scope", "spans", "likeliest", "explanations"}; the last two lists
/// and spans only where there are any. Bytes that are no UTF-8 become U+FFFD.
std::string answer_json(const RecognizerConfig& config, std::string_view text, const Prediction& prediction,
                        Index top, std::span<const Explanation> explanations = {});

/// Of every label that was given, or of the likeliest where none was; of `label` alone where it is named.
std::vector<Explanation> explain_labels(const Recognizer& recognizer, const std::string& text,
                                        const Prediction& prediction, const std::string& label,
                                        Session& session);

/// The number of a label; one the recogniser never learnt is refused with the nearest name.
Index label_named(const RecognizerConfig& config, const std::string& name, std::string_view op);

}  // namespace headwise
#pragma GCC visibility pop
