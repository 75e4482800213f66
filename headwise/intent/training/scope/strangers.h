// Strangers: everyday texts that belong to no label of the data. Few rows cannot show what is unknown to
// them; these can.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/training/training.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Adds them to both, labelled options.out_of_scope, as options.strangers wishes: "auto" where dev is so
/// small that it cannot choose a threshold and no row says what is out of scope. Those of dev have other
/// patterns. Sets learn_out_of_scope and about_scope. `cuts`: texts are cut, where a class of its own knows
/// strangers.
void add_strangers(Corpus& train, Corpus& dev, bool cuts, TrainingOptions& options);

}  // namespace headwise
#pragma GCC visibility pop
