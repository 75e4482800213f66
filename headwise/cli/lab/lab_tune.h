// TuneChoice: how a model that the lab has changed goes on learning, as cut and convert ask it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/cli/args/args.h"
#include "headwise/intent/training/training.h"

namespace headwise::cli {

struct TuneChoice {
  std::vector<std::string> files = {};
  Index epochs = 3, seed = 1;
  double rate = 5e-4;
  std::string device = "cpu";
  bool on = false;    // asked for, with or without files
  Device where = {};  // --device, behind the parser: where the encoder learns

  /// Behind the parser; refuses a device that is not there before any work begins.
  void read(const CLI::App& word);
};

void add_tune_options(CLI::App& word, TuneChoice& choice, const std::string& help);

/// The model after some epochs on the rows; each is judged on `dev`, and the best is kept.
Recognizer tuned(const TuneChoice& choice, const Recognizer& model, const Corpus& rows, const Corpus& dev,
                 Session& session, std::string_view op);

}  // namespace headwise::cli
