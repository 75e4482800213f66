// Head figures of a survey: what one map of weights does on one text, and sums of that over texts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <vector>

#include "headwise/lab/figures/survey_subject.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A figure of a head, and where it is a role: the least value that names the head after it.
struct FigureName {
  std::string_view name, sentence;
  double role_from = 0;  // 0: no role
};

/// Every figure that is a mean over texts. Those of weights alone stand in kMatrixFigures.
inline constexpr FigureName kTextFigures[] = {
    {"self", "weight on the own token", 0.5},
    {"previous", "weight on the token before", 0.5},
    {"next", "weight on the token behind", 0.5},
    {"first", "weight on the first token", 0.6},
    {"cls", "weight on [CLS]", 0.6},
    {"sep", "weight on [SEP]", 0.6},
    {"punctuation", "weight on punctuation", 0.6},
    {"broad", "entropy of the weights as a share of the largest there could be", 0.9},
    {"entropy", "entropy of the weights, nats", 0},
    {"first_row_entropy", "entropy of the first token's weights, nats", 0},
    {"confidence", "the largest weight of a row, [SEP] left out", 0},
    {"positional", "rows whose largest weight lies at the head's best offset", 0.9},
    {"induction", "weight on what followed the token before: random tokens, twice", 0.5},
    {"duplicate", "weight on the same token before: random tokens, twice", 0.5},
    {"rare", "rows whose largest weight is the text's rarest token", 0.5},
    {"distance", "tokens between a query and what it looks at", 0},
    {"sparsity", "keys that take 90 % of a row", 0},
    {"value_special", "weight times |v W_O| on [CLS] and [SEP], or the first token", 0},
    {"score_rank", "stable rank of the scores", 0},
    {"gradient", "size of dL/dweight, mean over all pairs", 0},
    {"gradient_sep", "the same of weights on [SEP]", 0},
};
inline constexpr std::size_t kTextFigureCount = std::size(kTextFigures);
inline constexpr FigureName kMatrixFigures[] = {
    {"out_norm", "length of the head's block of W_O", 0},
    {"qk_rank", "stable rank of W_Q W_K^T", 0},
    {"qk_top", "largest singular value of W_Q W_K^T", 0},
    {"ov_rank", "stable rank of W_V W_O", 0},
    {"ov_top", "largest singular value of W_V W_O", 0},
    {"copying", "sum of eigenvalues over that of their sizes, of W_E W_V W_O W_U: 1 copies, -1 the opposite",
     0},
};
inline constexpr std::size_t kMatrixFigureCount = std::size(kMatrixFigures);
/// The place of a text figure in the list.
constexpr std::size_t figure_at(std::string_view name) {
  for (std::size_t i = 0; i < kTextFigureCount; ++i)
    if (kTextFigures[i].name == name) return i;
  return kTextFigureCount;
}

/// A mean over texts with the half width of its 95 % interval.
struct Mean {
  Index n = 0;
  double sum = 0, squares = 0;
  void add(double x) { ++n, sum += x, squares += x * x; }
  double value() const { return n ? sum / static_cast<double>(n) : 0; }
  double half() const;
};

/// Offsets that may make a head positional.
inline constexpr Index kMostOffset = 8;

struct HeadSums {
  Mean figures[kTextFigureCount];
  Mean offsets[2 * kMostOffset + 1];
  Index best_offset() const;
  /// Fills figure `positional` from the offsets.
  void finish();
};

/// Shorter texts have no figures.
inline constexpr Index kFewestTokens = 3;

/// One map [tokens keys] of one text.
struct MapOfText {
  const SurveyTokens& tokens;
  const float* weights;
  bool causal = false;
  Index rarest = -1;  // token of the text; -1: it has none that counts
  const std::vector<double>* value_norm = nullptr;
  double score_rank = -1;
  const float* slopes = nullptr;                   // [tokens tokens]: dL/dweight
  const std::vector<SurveyToken>* keys = nullptr;  // of a cross head; none: the tokens themselves

  const std::vector<SurveyToken>& key_tokens() const { return keys ? *keys : tokens; }
  Index rows() const { return static_cast<Index>(tokens.size()); }
  Index wide() const { return static_cast<Index>(key_tokens().size()); }
  double at(Index i, Index j) const { return static_cast<double>(weights[i * wide() + j]); }
};
/// All figures but induction and duplicate, and the gradients.
void add_figures(const MapOfText& map, HeadSums& to);
/// Induction and duplicate, on a text of SurveySubject::repeated.
void add_repeats(const MapOfText& map, HeadSums& to);

/// Gradients of the weights.
void add_slopes(const MapOfText& map, HeadSums& to);

/// kMatrixFigures of one head; zeros where it has no matrices.
std::vector<double> matrix_figures(const HeadMatrices& m, const SmallMatrix& vocabulary);

}  // namespace headwise
#pragma GCC visibility pop
