// headwise <word>: the command line.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "headwise/base/version.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/intent/suggest.h"
#include "headwise/cli/lab/align.h"
#include "headwise/cli/ranks/cmd_checkpoint.h"
#include "headwise/cli/ranks/ranks.h"
#include "headwise/cli/shell/shell.h"
#include "headwise/distributed/engine.h"

namespace {

using namespace headwise::cli;

int run(int argc, char** argv) {
  CLI::App app(
      "Multi-head attention in which the head is the unit.\n"
      "Example: headwise explain --q-tokens 2048 --heads 8 --head-dim 128 --mask causal");
  app.name("headwise");
  app.set_version_flag("--version", fmt::format("headwise {}", headwise::kVersion));
  app.require_subcommand(1);
  int exit_code = kDone;
  add_explain(app, exit_code);
  add_doctor(app, exit_code);
  add_heads(app, exit_code);
  add_bench(app, exit_code);
  add_train(app, exit_code);
  add_eval(app, exit_code);
  add_predict(app, exit_code);
  add_generate(app, exit_code);
  add_policy(app, exit_code);
  add_chat(app, exit_code);
  add_report(app, exit_code);
  add_view(app, exit_code);
  add_serve(app, exit_code);
  add_cut(app, exit_code);
  add_convert(app, exit_code);
  add_survey(app, exit_code);
  add_align(app, exit_code);
  add_suggest(app, exit_code);
  add_checkpoint(app, exit_code);
  add_shell(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help and --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const auto words = app.get_subcommands();
    if (argc > 1 && words.empty())
      fmt::print(stderr, "headwise: there is no {} \"{}\"; see headwise --help\n",
                 argv[1][0] == '-' ? "option" : "command", argv[1]);
    else
      fmt::print(stderr, "headwise: {}; see headwise {}--help\n", e.what(),
                 words.empty() ? "" : words.front()->get_name() + " ");
    return kUsage;
  }
  return exit_code;
}

/// An answer that did not arrive is an error; a reader that has read enough and left is not one.
int lost(int exit_code, int code) {
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  ::poll(&reader, 1, 0);
  if ((reader.revents & (POLLERR | POLLHUP)) != 0) return exit_code;
  fmt::print(stderr, "headwise: stdout: cannot write: {}; send it elsewhere\n",
             code != 0 ? std::generic_category().message(code) : "a part was lost");
  return exit_code == kDone ? int{kFailed} : exit_code;
}

int delivered(int exit_code) {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return failed ? lost(exit_code, errno) : exit_code;  // errno is 0 where an earlier write failed
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return delivered(run(argc, argv));
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "headwise: {}out of memory; use smaller sizes\n", rank_words());
  } catch (const headwise::RankError& e) {
    // Where all ranks know the same, rank 0 says it. The first rank to go takes the others with it: they wait
    // for rank 0 to speak and go, on a busy machine too; who started them ends them then.
    if (e.everywhere() && !rank_words().empty())
      ::sleep(20);
    else
      fmt::print(stderr, "headwise: {}{}\n", rank_words(), e.what());
    return e.everywhere() ? int{kFailed} : int{kNoRank};
  } catch (const std::system_error& e) {
    if (std::ferror(stdout) != 0) return lost(kDone, e.code().value());  // an answer larger than a buffer
    fmt::print(stderr, "headwise: {}{}\n", rank_words(), e.what());
  } catch (const std::exception& e) {
    fmt::print(stderr, "headwise: {}{}\n", rank_words(), e.what());
  }
  return kFailed;
}
