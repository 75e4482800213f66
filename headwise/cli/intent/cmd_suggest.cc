// headwise suggest: which unlabelled texts to label next: those the model is unsure of, and no two alike.
#include <fmt/format.h>

#include <memory>

#include "headwise/cli/args/args.h"
#include "headwise/cli/intent/suggest.h"
#include "headwise/intent/training/suggest.h"
#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "suggest";
constexpr Index kMostBytes = Index{1} << 30;

struct Request {
  std::string model, file;
  Index rows = 50;
  int threads = 0;
};

/// The lines of a file that are not empty.
std::vector<std::string> lines_of(const std::string& path) {
  const std::string all = read_text(path, kMostBytes, kOp);
  if (const Index bad = first_bad_utf8(all); bad >= 0)
    throw Error(ErrorKind::bad_argument,
                text(kOp, ": ", path, ": byte ", bad, " is no UTF-8; convert it, such as with iconv"));
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    std::string line = all.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != line.npos) lines.push_back(std::move(line));
    at = end + 1;
  }
  require(!lines.empty(), ErrorKind::bad_argument, kOp, path, " holds no text; give one a line");
  return lines;
}

int suggest(const Request& r) {
  const std::vector<std::string> texts = lines_of(r.file);
  const Recognizer model = Recognizer::load(r.model);
  Session session({.threads = r.threads});
  for (const Suggestion& s : suggest_rows(model, texts, r.rows, session)) {
    const std::vector<float>& p = s.prediction.probability;
    const auto best = std::max_element(p.begin(), p.end()) - p.begin();
    fmt::print("{}\t{}\t{:.3f}\n", texts[static_cast<std::size_t>(s.text)],
               model.config().labels[static_cast<std::size_t>(best)], s.prediction.confidence);
  }
  return kDone;
}

}  // namespace

void add_suggest(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("suggest", "Which unlabelled texts to label next");
  word->footer(
      "Example: headwise suggest model unlabelled.txt --rows 100 > to_label.tsv\n"
      "Rows are text, likeliest label and its probability; correct the labels and train with them.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote")->required();
  word->add_option("texts", r->file, "A file of texts, one a line")->required();
  word->add_option("--rows", r->rows, "Texts to suggest at most")->check(size_check())->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = suggest(*r); });
}

}  // namespace headwise::cli
