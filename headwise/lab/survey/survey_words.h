// Survey words: numbers, names and lists as the files and the page of a survey write them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/lab/figures/figures.h"

namespace headwise {

/// Nine digits; what is not finite is 0.
std::string survey_number(double x);
/// The look of its pages, and the colour of one of several lines.
std::string_view survey_style();
std::string_view survey_colour(Index number);
std::string joined_words(const std::vector<std::string>& all, std::string_view between);

/// Figures of texts, then those of matrices.
inline constexpr std::size_t kAllFigures = kTextFigureCount + kMatrixFigureCount;
constexpr const FigureName& survey_figure(std::size_t f) {
  return f < kTextFigureCount ? kTextFigures[f] : kMatrixFigures[f - kTextFigureCount];
}

}  // namespace headwise
