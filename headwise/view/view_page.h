// view_page: one self-contained HTML page on which attention weights are looked at, head by head.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/view/attention_maps.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ViewOptions {
  std::string name = "attention";  // the page's title
  std::string language = "";       // of the surface: en, zh; empty: as the reader's browser prefers
  bool compare = false;            // begins with the first attention minus the second
  Index bytes = 8'800'000;  // for weights, before base64; what does not fit is left out, smallest first
  Index vector_bytes = 4'000'000;  // for queries and keys; above it they are left out, and said so
};

struct ViewPage {
  std::string page;
  double left_out = 0;  // mass that the page does not hold, mean over rows
  std::vector<std::string> warnings;
};

/// The page of a long map: it holds no weights and asks MapService for what is looked at.
std::string map_page(const std::string& language = "");

ViewPage view_page(std::span<const AttentionMaps> all, const ViewOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
