#include "headwise/cli/ranks/cmd_checkpoint.h"

#include <fmt/format.h>

#include <memory>

#include "headwise/cli/args/args.h"
#include "headwise/train/checkpoints/sliced_checkpoint.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string action, from, out;
};

}  // namespace

void add_checkpoint(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("checkpoint", "Checkpoints that ranks wrote in slices, joined to one file");
  word->footer("Example: headwise checkpoint join model.run/step-000000000042.json whole.safetensors");
  const auto r = std::make_shared<Request>();
  word->add_option("action", r->action, "join")->required()->check(CLI::IsMember({"join"}));
  word->add_option("from", r->from,
                   "The step-N.json of a folder of checkpoints; the files it names lie beside it")
      ->required();
  word->add_option("out", r->out, "The file that is written: that of a training on one rank")->required();
  word->callback([r, &exit_code] {
    join_checkpoint(r->from, r->out);
    fmt::print("wrote {}\n", r->out);
    exit_code = kDone;
  });
}

}  // namespace headwise::cli
