// Calibration of cuts: the shift of candidates and the weight of spans with the most exact matches on dev.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/intent/training/training.h"

namespace headwise {

/// `readings` are those of dev's rows.
CutOptions calibrate_cuts(const Recognizer& model, const Corpus& dev, std::span<const TextReading> readings);

}  // namespace headwise
