// The words of texts in a build without headwise_text: each says why it cannot work.
#include "headwise/cli/args/args.h"
#include "headwise/cli/attention/explain_model.h"
#include "headwise/cli/intent/suggest.h"
#include "headwise/cli/lab/align.h"

namespace headwise::cli {
namespace {

void add_missing(CLI::App& app, const char* name) {
  CLI::App* word = app.add_subcommand(name, "Not in this build: it needs ICU");
  word->footer("Example: headwise doctor");
  word->prefix_command();  // takes any words
  word->callback([name] {
    throw Error(ErrorKind::unsupported,
                text(name,
                     ": this build reads no texts, because ICU was not there when it was made; install "
                     "libicu-dev and build again"));
  });
}

}  // namespace

int explain_model(const ModelStep&) {
  throw Error(ErrorKind::unsupported,
              "explain: this build reads no models, because ICU was not there when it was made; install "
              "libicu-dev and build again");
}
void add_train(CLI::App& app, int&) { add_missing(app, "train"); }
void add_eval(CLI::App& app, int&) { add_missing(app, "eval"); }
void add_predict(CLI::App& app, int&) { add_missing(app, "predict"); }
void add_chat(CLI::App& app, int&) { add_missing(app, "chat"); }
void add_generate(CLI::App& app, int&) { add_missing(app, "generate"); }
void add_policy(CLI::App& app, int&) { add_missing(app, "policy"); }
void add_report(CLI::App& app, int&) { add_missing(app, "report"); }
void add_view(CLI::App& app, int&) { add_missing(app, "view"); }
void add_serve(CLI::App& app, int&) { add_missing(app, "serve"); }
void add_cut(CLI::App& app, int&) { add_missing(app, "cut"); }
void add_convert(CLI::App& app, int&) { add_missing(app, "convert"); }
void add_survey(CLI::App& app, int&) { add_missing(app, "survey"); }
void add_align(CLI::App& app, int&) { add_missing(app, "align"); }
void add_suggest(CLI::App& app, int&) { add_missing(app, "suggest"); }

}  // namespace headwise::cli
