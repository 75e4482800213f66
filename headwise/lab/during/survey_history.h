// SurveyHistory: figures of all heads after every epoch of a training, so that roles are seen as they come.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/lab/survey/head_survey.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One head after one epoch.
struct HeadMoment {
  Index epoch = 0, layer = 0, head = 0;
  std::string roles = {};            // as heads.csv writes them
  std::vector<double> figures = {};  // all figures of texts and matrices, then `apart`
};

/// Its CSV is its memory: a training that was stopped reads it and goes on.
class SurveyHistory {
 public:
  SurveyHistory() = default;
  /// What csv() gave; anything else is refused with `name`.
  SurveyHistory(std::string_view csv, std::string_view name);

  /// This epoch and those behind it are as the survey says; nothing is known of later ones.
  void add(Index epoch, const HeadSurvey& survey);
  const std::vector<HeadMoment>& moments() const { return moments_; }
  std::vector<Index> epochs() const;

  std::string csv() const;
  std::string json() const;
  /// One page: every figure over the epochs, a line a head, and when roles came and went.
  std::string page(std::string_view model, std::string_view texts) const;

 private:
  std::vector<HeadMoment> moments_;  // epoch by epoch, layer by layer
};

/// Names of HeadMoment::figures. `apart`: the mean divergence from the other heads of its layer.
std::vector<std::string> history_figures();

}  // namespace headwise
#pragma GCC visibility pop
