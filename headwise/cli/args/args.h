// What every word of the command line shares: exit codes, colours, lists in options.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "headwise/base/dtype.h"
#include "headwise/spec/probe.h"

namespace headwise::cli {

/// Stable: scripts may rely on them.
enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kNoRank = 75 };  // 75: a rank did not come

/// Colours for people: off when stdout is no terminal, when NO_COLOR is set and not empty, and for TERM=dumb.
class Paint {
 public:
  explicit Paint(bool on) : on_(on) {}
  static Paint for_stdout();
  std::string bold(std::string_view s) const { return wrapped("1", s); }
  std::string good(std::string_view s) const { return wrapped("32", s); }
  std::string warn(std::string_view s) const { return wrapped("33", s); }
  /// From -1 (against: red) over 0 (plain) to 1 (for: green).
  std::string shade(double share, std::string_view s) const;

 private:
  std::string wrapped(const char* code, std::string_view s) const;
  bool on_;
};

/// Sizes that may be multiplied in pairs; what the parser cuts off at 2^63 - 1 lies above it.
inline constexpr Index kLargestSize = Index{1} << 31;
/// A whole number from `least` to `most`.
CLI::Validator size_check(Index least = 0, Index most = kLargestSize);

DType parse_dtype(const std::string& name);
/// "rows,top8,classes4,columns,picked16,scores=weights".
ProbeSpec parse_probe(const std::string& list);

/// Each adds one word to the program; `exit_code` is set when the word runs.
void add_explain(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_heads(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_predict(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_policy(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_view(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_cut(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);
void add_survey(CLI::App& app, int& exit_code);

}  // namespace headwise::cli
