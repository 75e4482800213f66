// Counting what held and what did not, and saying where: all a test program needs without a framework.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>

#include "tests/selftest/setup.h"

namespace headwise::selftest {

struct Tally {
  int passed = 0, failed = 0;
};
Tally& tally();

/// Counts one check; a failure prints the part it belongs to and its sentence.
void check(bool ok, const std::string& part, const std::string& sentence);
/// Runs one named piece; an exception counts as a failure.
void piece(const std::string& part, const std::function<void()>& body);

/// `got` against the double truth of the same inputs: no farther than a plain run in the same dtype (policy
/// T1) or inside the guard for unit-normal data (T2). The same for lse (T5).
void check_close(const std::string& part, const Inputs& inputs, const Outputs& got, const Outputs& truth);
/// Probes against the double truth; `weights` is the truth's whole matrix.
void check_probes(const std::string& part, const Inputs& inputs, const Outputs& got, const Outputs& truth);
/// Every value of a and b within `tolerance` of each other, absolute and relative to the larger of 1 and |b|.
void check_near(const std::string& part, const InputView& a, const InputView& b, double tolerance);

/// The same formula, plainly, every step rounded to the inputs' dtype: what T1 measures with.
Outputs plain_run(const Inputs& inputs);

struct Options {
  bool quick = false;
};
void check_laws(const Options& options);
void check_bits(const Options& options);
void check_kernels(const Options& options);
void check_backward(const Options& options);
void check_decode(const Options& options);
void check_entmax(const Options& options);
void check_mixed(const Options& options);
void check_products(const Options& options);
void check_rows(const Options& options);

}  // namespace headwise::selftest
