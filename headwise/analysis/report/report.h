// Report: one self-contained page on a recogniser and labelled utterances: answers, heads, mistakes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headwise/analysis/report/drift.h"
#include "headwise/analysis/survey.h"
#include "headwise/text/text_encoder.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A curve of the training run: (step, value).
struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

/// Sentences every page shows, whatever the data.
std::vector<std::string> standing_gallery();

struct ReportOptions {
  std::string model = "model", data = "data";  // their names on the page
  Index mistakes = 500;                        // shown at most, the most confident first
  Index tokens = 512;                          // of a sentence that is drawn; the rest is left out
  Index weight_bytes = 5'000'000;              // for attention weights of mistakes, as base64
  bool redact = false;                         // digits and names as dots: see private_bytes
  SurveyOptions survey = {};
  std::vector<std::string> gallery = standing_gallery();
  std::vector<Curve> curves = {};
  const Drift* drift = nullptr;  // what moved since earlier texts; null: nothing to compare with
  /// A pretrained encoder whose heads show the gallery's first sentence, and its name.
  const TextEncoder* encoder = nullptr;
  std::string encoder_name = {};
  std::string language = "en";  // of what the page says: "en" or "zh"
};

struct Report {
  std::string page;
  Index utterances = 0, right = 0, mistakes = 0, shown = 0;
  Survey survey;
};

/// The page needs no network and holds every text escaped: nothing in the data is run or hidden.
Report make_report(const Recognizer& recognizer, const Corpus& corpus, const RoleBook& book, Session& session,
                   const ReportOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
