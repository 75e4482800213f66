// cut_curve: what a model gives and costs as its heads go: right answers, parameters, keys and values, time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/lab/cut/cut.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The model with so many heads left, cut for real and run.
struct CutState {
  Index heads = 0, parameters = 0;
  Index kv_bytes = 0;  // keys and values of one token through all layers, as f32
  double loss = 0;
  double right = -1;   // share of texts with all labels right and no other; -1: an encoder has no labels
  double seconds = 0;  // of one text: the median of the rounds, texts of a batch together
  double time = 1;     // as a share of the whole model's, which runs in turns with it
};

struct CutCurveOptions {
  Index states = 6;          // from all heads to those left at the end of the order
  int rounds = 5;            // of the clock
  Index texts = 400;         // that are run against the clock, at most
  std::string scratch = {};  // folder for encoders on their way; taken away again
};

/// States with fewer and fewer heads, which go in `order`.
std::vector<CutState> cut_curve(const LabModel& model, HeadTrial& trial, const Corpus& corpus,
                                const std::vector<HeadName>& order, const CutCurveOptions& options,
                                Session& session);

std::string curve_csv(const std::vector<CutState>& states);
/// Four pictures beside each other: what is right (or the loss), parameters, keys and values, time.
std::string curve_svg(const std::vector<CutState>& states);
/// The same with a table, as one page that needs nothing else.
std::string curve_page(const std::vector<CutState>& states, std::string_view model);

}  // namespace headwise
#pragma GCC visibility pop
