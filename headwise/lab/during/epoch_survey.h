// EpochSurvey: a training's heads surveyed after every epoch, its files kept in a run folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/lab/during/survey_history.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What the page calls the model and the file of texts.
struct SurveyNames {
  std::string model, texts;
};

class EpochSurvey {
 public:
  /// `folder` is the run folder: what an earlier part of the same training left there is taken up.
  EpochSurvey(std::string folder, std::vector<std::string> texts, SurveyNames names, int threads);

  /// Surveys the model and writes during.csv, during.json and during.html, each whole. The model is read from
  /// a copy on the disk, so nothing of the training is touched.
  void look(Index epoch, const Recognizer& model);
  /// The three files; none before the first epoch.
  std::vector<FolderFile> files() const;

 private:
  std::string folder_;
  std::vector<std::string> texts_;
  SurveyNames names_;
  int threads_;
  SurveyHistory history_;
};

}  // namespace headwise
#pragma GCC visibility pop
