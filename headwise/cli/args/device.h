// --device: where a command's recogniser runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "headwise/intent/recognizer/recognizer.h"

namespace headwise::cli {

/// Where an encoder runs, and what it computes in there.
struct DeviceChoice {
  std::string name = "cpu", dtype = "f32";
};
void add_device_option(CLI::App& word, std::string& device);
/// With --dtype.
void add_device_options(CLI::App& word, DeviceChoice& choice);
/// The device of these words; of auto, what it took is said on stderr.
Device named_device(const std::string& words, std::string_view op);
/// Moves the encoder where the choice says. Over ranks only the CPU does.
void place_model(Recognizer& model, const DeviceChoice& choice, std::string_view op, int ranks, Context& ctx);

}  // namespace headwise::cli
