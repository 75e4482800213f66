// train_forms: texts of several intents learnt both ways, cut into spans and asked by label; dev says which.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/training/train_words.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Words with `--compound auto`: both forms are trained, one after the other, and the one that is right more
/// often on dev is given. Equally good ones are asked by label, in one pass a text. The card says what dev
/// said. Each form has a folder of its own in the run folder, so a stopped call goes on where it was; minutes
/// are those of one form. Where no row can be cut only labels are asked.
TrainedRecognizer train_forms(const TrainWords& words, const Pretrained* pretrained, const Corpus& train,
                              const Corpus& dev, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
