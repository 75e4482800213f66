// headwise view: a page on which the attention of a model or of arrays is looked at, head by head.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "headwise/cli/args/args.h"
#include "headwise/cli/serve/serve_view.h"
#include "headwise/model/file.h"
#include "headwise/view/array_maps.h"
#include "headwise/view/model_maps.h"
#include "headwise/view/view_page.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "view";
constexpr Index kMostBytes = Index{64} << 20;  // of a text or a list of tokens

struct Request {
  std::string source, with, file, tokens, out = "view.html";
  ModelText what;  // to look at in a model
  ViewOptions options;
  int threads = 0, port = 0;
  bool open = false;         // serve it
  std::string mask = "all";  // of queries and keys in a file of arrays
  float scale = 0;
};

bool is_arrays(const std::string& path) {
  return path.ends_with(".npz") || path.ends_with(".npy") || path.ends_with(".safetensors") ||
         path.ends_with(".atnv");
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

/// The model's maps, then those of the other where one is given.
std::vector<AttentionMaps> maps_of_models(Request& r, Session& session) {
  require(r.file.empty() || r.what.text.empty(), ErrorKind::bad_argument, kOp,
          "--text and --file are both given; give one");
  if (!r.file.empty()) r.what.text = read_text(r.file, kMostBytes, kOp);
  require(!r.what.text.empty(), ErrorKind::bad_argument, kOp,
          "a model needs a text to look at; give --text or --file");
  std::vector<AttentionMaps> all;
  all.push_back(maps_of_model(r.source, r.what, session));
  if (!r.with.empty()) add_other(all, r.source, r.with, r.what, session);
  return all;
}

/// Queries and keys: weights come from them when looked at. None: the file holds something else.
std::optional<QkSource> queries_of(const Request& r) {
  if (!is_arrays(r.source)) return std::nullopt;
  QkTerms terms;
  terms.mask = parse_mask(r.mask), terms.scale = r.scale;
  return open_qk(r.source, terms);
}

int view_queries(const Request& r, QkSource source) {
  const std::string size = fmt::format("{} layers of {} heads, {} queries, {} keys", source.layers.size(),
                                       source.heads, source.q_tokens, source.kv_tokens);
  require(r.open, ErrorKind::bad_argument, kOp, r.source, " holds queries and keys (", size,
          "), from which weights are computed when looked at; give --open");
  fmt::print("{}\n", size);
  std::string page = map_page(r.options.language);
  return serve_view(std::move(page), std::make_unique<DeepMap>(std::move(source), r.threads), r.port);
}

int view(Request& r) {
  if (std::optional<QkSource> source = queries_of(r)) return view_queries(r, std::move(*source));
  Session session({.threads = r.threads});
  std::vector<AttentionMaps> all;
  std::optional<ArrayFile> arrays;
  if (is_arrays(r.source)) {
    arrays.emplace(r.source, kOp);
    require(r.with.empty(), ErrorKind::bad_argument, kOp,
            "--with compares models; arrays of one file are compared on the page");
    all = maps_of_arrays(*arrays, lines_of(r.tokens));
  } else {
    all = maps_of_models(r, session);
  }
  if (r.options.name.empty()) r.options.name = std::filesystem::path(r.source).filename().string();
  r.options.compare = !r.with.empty();
  ViewPage made = view_page(all, r.options);
  if (r.open) return serve_view(std::move(made.page), nullptr, r.port);
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
      "         headwise view stories.bin --text \"Once upon a time\" --generate 40\n"
      "         headwise view weights.npz --tokens tokens.txt\n"
      "         headwise view long.atnv --open\n"
      "The page needs no network; it holds the text and the weights.");
  const auto r = std::make_shared<Request>();
  r->options.name.clear();
  word->add_option("source", r->source,
                   "A recogniser's folder, a BERT-style encoder's, a translator's, a decoder's folder or "
                   "file, or a file of arrays")
      ->required();
  word->add_option("--text", r->what.text, "The text to look at");
  word->add_option("--pair", r->what.pair,
                   "A second text: for encoders of pairs, or a translator's translation");
  word->add_option("--generate", r->what.decoder.generate, "For decoders: tokens to write behind the text")
      ->check(size_check());
  word->add_option("--temperature", r->what.decoder.sampling.temperature,
                   "For --generate: 0 takes the likeliest token always")
      ->capture_default_str();
  word->add_option("--seed", r->what.decoder.sampling.seed, "For --temperature: of the noise")
      ->capture_default_str();
  word->add_option("--circuit", r->what.decoder.circuit,
                   "For decoders: QK and OV token by token, of all heads or of such as 2.5,3.0");
  word->add_option("--with", r->with, "A second model on the same text, to compare with");
  word->add_option("--file", r->file, "A file that holds the text");
  word->add_option("--tokens", r->tokens, "For arrays: a file with one token a line");
  word->add_flag("--open", r->open, "Serve it on this machine, and say at which address");
  word->add_option("--port", r->port, "For --open: port; 0 takes a free one")->check(CLI::Range(0, 65535));
  word->add_option("--mask", r->mask,
                   "For q and k in .npz and .safetensors: such as causal or causal & window(255, 0)")
      ->capture_default_str();
  word->add_option("--scale", r->scale, "For q and k: what scores are multiplied by; 0: 1 / sqrt(head_dim)")
      ->capture_default_str();
  word->add_option("--out", r->out, "The page")->capture_default_str();
  word->add_option("--name", r->options.name, "The page's title; else the source's name");
  word->add_option("--language", r->options.language, "Of the page: en or zh; else as the browser prefers");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = view(*r); });
}

}  // namespace headwise::cli
