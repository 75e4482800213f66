// headwise view: a page on which the attention of a model or of arrays is looked at, head by head.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "headwise/cli/args.h"
#include "headwise/model/file.h"
#include "headwise/view/array_maps.h"
#include "headwise/view/model_maps.h"
#include "headwise/view/view_page.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "view";
constexpr Index kMostBytes = Index{64} << 20;  // of a text or a list of tokens

struct Request {
  std::string source, text, pair, file, tokens, out = "view.html";
  ViewOptions options;
  int threads = 0;
};

bool is_arrays(const std::string& path) {
  return path.ends_with(".npz") || path.ends_with(".npy") || path.ends_with(".safetensors");
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  if (path.empty()) return lines;
  const std::string all = read_text(path, kMostBytes, kOp);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    lines.push_back(all.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

AttentionMaps maps_of_model(const Request& r, Session& session) {
  require(r.file.empty() || r.text.empty(), ErrorKind::bad_argument, kOp,
          "--text and --file are both given; give one");
  const std::string words = r.file.empty() ? r.text : read_text(r.file, kMostBytes, kOp);
  require(!words.empty(), ErrorKind::bad_argument, kOp,
          "a model needs a text to look at; give --text or --file");
  return maps_of_folder(r.source, words, r.pair, session);
}

int view(Request& r) {
  Session session({.threads = r.threads});
  std::vector<AttentionMaps> all;
  std::optional<ArrayFile> arrays;
  if (is_arrays(r.source)) {
    arrays.emplace(r.source, kOp);
    all = maps_of_arrays(*arrays, lines_of(r.tokens));
  } else {
    all.push_back(maps_of_model(r, session));
  }
  if (r.options.name.empty()) r.options.name = std::filesystem::path(r.source).filename().string();
  const ViewPage made = view_page(all, r.options);
  Replacement file(r.out, kOp);
  file.file().write(made.page);
  file.commit();
  for (const std::string& w : made.warnings) fmt::print(stderr, "warning: {}\n", w);
  Index heads = 0;
  for (const AttentionMaps& m : all)
    for (const Index h : m.heads) heads += h;
  fmt::print(
      "{} heads, {} tokens; {:.1f} % of the mass does not fit and is left out\nwrote {} ({:.1f} MB): open it "
      "in a browser\n",
      heads, all[0].queries.count(), 100 * made.left_out, r.out, static_cast<double>(made.page.size()) / 1e6);
  return kDone;
}

}  // namespace

void add_view(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("view", "A page on which attention is looked at, head by head");
  word->footer(
      "Example: headwise view model --text \"my card was stolen\" --out view.html\n"
      "         headwise view weights.npz --tokens tokens.txt\n"
      "The page needs no network; it holds the text and the weights.");
  const auto r = std::make_shared<Request>();
  r->options.name.clear();
  word->add_option("source", r->source, "A recogniser's folder, a BERT-style encoder's, or a file of arrays")
      ->required();
  word->add_option("--text", r->text, "The text to look at");
  word->add_option("--pair", r->pair, "A second text, for encoders of pairs");
  word->add_option("--file", r->file, "A file that holds the text");
  word->add_option("--tokens", r->tokens, "For arrays: a file with one token a line");
  word->add_option("--out", r->out, "The page")->capture_default_str();
  word->add_option("--name", r->options.name, "The page's title; else the source's name");
  word->add_option("--language", r->options.language, "Of the page: en or zh; else as the browser prefers");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = view(*r); });
}

}  // namespace headwise::cli
