// TrainWords: what a training is asked in the words of `headwise train`, and the settings they stand for.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "headwise/intent/training/pretrained.h"
#include "headwise/intent/training/training.h"

#pragma GCC visibility push(default)
namespace headwise {

struct TrainWords {
  RecognizerConfig config = {};
  TrainingOptions training = {};
  std::string from = {}, pooling = {}, norm = {}, long_text = {}, scales = {}, plant = {}, gates = {},
              compound = {}, positions = {};
  std::string dtype = "f32";
  double dropout = -1;
  bool norm_after = false;
  std::set<std::string, std::less<>> said = {};  // options that were given, as "epochs"
};

/// Gives one option by its name without dashes in front, as ("max-tokens", "128"); "connectors" may be given
/// again and again. A name it does not know and a value that is no number are refused.
void say(TrainWords& words, std::string_view option, const std::string& value);
/// The recipes of fine-tuning and of cutting, where they are asked for, in the place of every word that was
/// not said.
void take_recipes(TrainWords& words);
/// The words into the config; the pretrained encoder's sizes where one is given.
RecognizerConfig config_of(const TrainWords& words, const Pretrained* pretrained);

}  // namespace headwise
#pragma GCC visibility pop
