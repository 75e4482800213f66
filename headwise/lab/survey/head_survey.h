// survey_model: what every head of a model does on texts, beside a shuffled model and chance, as figures.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headwise/lab/depth/depth_figures.h"
#include "headwise/lab/figures/figures.h"
#include "headwise/lab/model/texts.h"

#pragma GCC visibility push(default)
namespace headwise {

struct HeadSurveyOptions {
  Index texts = 200, tokens = 128;   // at most: texts, and tokens of one
  Index shuffled = 200;              // texts that the shuffled model reads, at most
  Index repeats = 4, repeated = 25;  // texts of random tokens, twice `repeated` of them
  Index apart = 30;                  // texts on which heads are held against each other; 0: none
  Index clusters = 8;                // of heads that look alike
  Index flow = 4;                    // short texts of which flow is taken; 0: none
  Index collapse = 8;                // texts of which rank collapse is taken; 0: none
  Index gradients = 8;               // texts of which gradients of weights are taken; 0: none
  /// Figures of rows of weights alone: no shuffled model, chance, roles, matrices, map or depth.
  bool rows_only = false;
  std::optional<AttentionPart> part = {};  // of a translator's attentions; none: that of its encoder
  Index least = 20;                        // relations counted before one may name a head
  std::uint64_t seed = 1;                  // of the shuffle, the random tokens and chance
  std::vector<RelatedText> related = {};   // trees or pairs
  /// Called with the share done, 0 to 1.
  std::function<void(double)> progress = {};
};

/// A figure of a head, that of the same head of the shuffled model, and half of their 95 % intervals. What
/// was not taken is no number.
struct FigureValue {
  double value = 0, half = 0, shuffled = 0, shuffled_half = 0;
};

/// Shares of the relations in which the word that a head looks at most is the right one.
struct RelationValue {
  double forth = 0, back = 0;                    // from the first word to the second; from the second
  double shuffled_forth = 0, shuffled_back = 0;  // of the shuffled model
};

struct RelationName {
  std::string name;
  Index count = 0, offset = 0;
  double baseline = 0;  // share of the most frequent offset, in words
};

struct SurveyedModelHead {
  Index layer = 0, head = 0, offset = 0, cluster = 0;
  std::vector<FigureValue> figures = {};      // kTextFigures, then kMatrixFigures
  std::vector<RelationValue> relations = {};  // by HeadSurvey::relations
  std::vector<std::string> roles = {};
  double x = 0, y = 0;  // on the map
};

struct HeadSurvey {
  Index layers = 0, texts = 0, tokens = 0;
  Index shortened = 0;  // texts of which the first tokens were read alone
  bool causal = false, cross = false;
  std::vector<SurveyedModelHead> heads = {};  // layer by layer
  std::vector<FigureValue> chance = {};       // kTextFigures of heads with random weights
  std::vector<RelationName> relations = {};
  /// [kDepthFigures][layers]; a figure that no text gave is no number.
  std::vector<std::vector<FigureValue>> depth = {};
  ShownPath shown = {};    // of the first text that is short enough; empty: of none
  SmallMatrix apart = {};  // [heads heads], mean Jensen-Shannon divergence, nats
  /// Mean divergence between the heads of one layer, over depth.
  std::vector<double> apart_in_layer() const;
};

/// A role is claimed where its figure reaches a threshold, a tenth and both intervals above chance and every
/// shuffled head of its layer. A relation must beat the best offset and the shuffled head by 10 points. Maps
/// of weights live while their text does; nothing of tokens x tokens is kept.
HeadSurvey survey_model(const std::string& path, const std::vector<std::string>& texts, int threads,
                        const HeadSurveyOptions& options = {});
/// The same of subjects that are open; without a shuffled one, figures of rows alone.
HeadSurvey survey_subjects(SurveySubject& model, SurveySubject* shuffled,
                           const std::vector<std::string>& texts, const HeadSurveyOptions& options);

/// survey.json, heads.csv, depth.csv, path.csv and apart.csv as texts.
std::string survey_json(const HeadSurvey& survey);
std::string survey_csv(const HeadSurvey& survey);
std::string depth_csv(const HeadSurvey& survey);
std::string path_csv(const HeadSurvey& survey);
std::string apart_csv(const HeadSurvey& survey);
/// One page that needs nothing else.
std::string survey_page(const HeadSurvey& survey, std::string_view model, std::string_view texts);
/// The map of heads as SVG.
std::string survey_map(const HeadSurvey& survey);

}  // namespace headwise
#pragma GCC visibility pop
