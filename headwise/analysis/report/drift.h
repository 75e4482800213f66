// Drift: which labels and words are more or less frequent in one set of texts than in an earlier one.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

class ReportWords;

/// A label or a word: in how many texts it was before and is now.
struct Moved {
  std::string name;
  Index before = 0, now = 0;
  double z = 0;  // difference of the shares over its standard error: beyond 2 it is rarely chance
};

struct Drift {
  Index texts_before = 0, texts_now = 0;
  std::vector<Moved> labels = {}, words = {};  // what moved most first
};

/// Labels are those the recogniser gives; "out of scope" stands for none. Words are in lower case; those in
/// fewer than 5 texts of both together are left out, and so are words with |z| below 3.
Drift drift_between(const Recognizer& recognizer, std::span<const std::string> before,
                    std::span<const std::string> now, Session& session);
/// For a terminal, and a section of the report.
std::string print(const Drift& drift, std::size_t most = 8);
std::string drift_section(const Drift& drift, const ReportWords& say);

}  // namespace headwise
#pragma GCC visibility pop
