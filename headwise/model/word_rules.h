// WordRules: how the texts of a model are cut into words, as the files beside its weights say it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

namespace headwise {

struct WordRules {
  bool lower_case = true;     // uncased models
  bool strip_accents = true;  // decompose, then drop category Mn; uncased models do both
  bool chinese_apart = true;  // each Chinese character is a word
  Index word_chars = 100;     // a longer word is known by its place alone
};

}  // namespace headwise
