// text_loss: how wrong a recogniser's scores of one text are, and the slope of that.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// The cross-entropy of the true label, or the sum of binary ones over all labels, of row `text` of the
/// logits [texts labels]. Its gradient goes to the same row of `slope` where that is given.
double text_loss(const Recognizer& recognizer, const AnyView& logits, Index text,
                 const std::vector<Index>& labels, const AnyView& slope);

/// Numbers of an utterance's labels; false: the recogniser does not know one of them, or there is none where
/// one is needed.
bool label_numbers(const Recognizer& recognizer, const Utterance& utterance, std::vector<Index>& labels);

}  // namespace headwise
#pragma GCC visibility pop
