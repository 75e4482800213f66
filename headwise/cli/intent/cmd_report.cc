// headwise report: one page that shows which heads do what, and why mistakes were made.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "headwise/analysis/report/report.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/args/corpora.h"
#include "headwise/cli/args/device.h"
#include "headwise/cli/intent/surface.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "report";
constexpr Index kMostBytes = Index{1} << 28;  // of metrics.json and of a file of roles

struct Request {
  std::string model, out = "report.html", encoder;
  CorpusChoice data;
  std::vector<std::string> roles, compare, sentences;
  ReportOptions options;
  int threads = 0;
  std::string device = "cpu";
  bool table = false;
};

std::string name_of_folder(const std::string& folder) {
  const std::filesystem::path path(folder);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Every number of the rows of "curve" but those that only count; a model without metrics.json has none.
std::vector<Curve> curves_of(const std::string& folder) {
  std::vector<Curve> all;
  const std::string path = folder + "/metrics.json";
  if (!std::filesystem::exists(path)) return all;
  const auto json = nlohmann::ordered_json::parse(read_text(path, kMostBytes, kOp), nullptr, false);
  if (json.is_discarded() || !json.contains("curve") || !json["curve"].is_array()) return all;
  for (const auto& row : json["curve"]) {
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number()) continue;
    for (const auto& item : row.items()) {
      const std::string& key = item.key();
      const auto& value = item.value();
      if (key == "step" || key == "examples" || key == "seconds" || !value.is_number()) continue;
      auto at = std::find_if(all.begin(), all.end(), [&](const Curve& c) { return c.name == key; });
      if (at == all.end()) at = all.insert(all.end(), {key, {}});
      at->points.emplace_back(row["step"].get<double>(), value.get<double>());
    }
  }
  std::erase_if(all, [](const Curve& c) { return c.points.size() < 2; });
  return all;
}

/// The same verdicts as the page's, for a terminal or a pipe.
void print_table(const Survey& s, const RoleBook& book) {
  fmt::print("{:>5} {:>4}  {:<10} {:>10} {:>9} {:>8} {:>6}  {}\n", "layer", "head", "role", "importance",
             "when off", "entropy", "pairs", "x uniform, loss when off with / without");
  for (const SurveyedHead& h : s.all) {
    if (!h.there) continue;
    fmt::print("{:>5} {:>4}  {:<10} {:>10.4f} {:>+9.4f} {:>8.2f}", h.layer, h.head,
               h.role < 0 ? "-" : book.roles()[static_cast<std::size_t>(h.role)].name, h.importance, h.hurt,
               h.figures.entropy);
    if (h.role >= 0) {
      const RoleScore& r = h.roles[static_cast<std::size_t>(h.role)];
      fmt::print(" {:>6}  {:.1f}, {:+.3f} / {:+.3f}", r.pairs, r.ratio(), r.hurt_with, r.hurt_without);
    }
    fmt::print("\n");
  }
}

int report(Request& r) {
  RoleBook book = RoleBook::builtin();
  for (const std::string& path : r.roles) book.add(read_text(path, kMostBytes, kOp), path);
  Corpora all = read_corpora_of(r.data, kOp);
  const Corpus corpus = std::move(r.data.builtin ? all.test : all.train);
  Session session({.threads = r.threads});
  Recognizer model = Recognizer::load(r.model);
  model.to(named_device(r.device, kOp), session.ctx);
  std::unique_ptr<TextEncoder> encoder;
  if (!r.encoder.empty()) {
    encoder = std::make_unique<TextEncoder>(r.encoder);
    r.options.encoder = encoder.get(), r.options.encoder_name = name_of_folder(r.encoder);
  }
  r.options.gallery.insert(r.options.gallery.begin(), r.sentences.begin(), r.sentences.end());
  r.options.language = surface_language(r.options.language);
  r.options.model = name_of_folder(r.model);
  r.options.data = corpus.name;
  r.options.curves = curves_of(r.model);
  const bool person = isatty(STDERR_FILENO) != 0;
  if (person)
    r.options.survey.progress = [](double share) {
      fmt::print(stderr, "\rlooking at the heads: {:3.0f} %{}", 100 * share, share < 1 ? "" : "\n");
    };
  std::optional<Drift> drift;
  if (!r.compare.empty()) {
    const auto texts = [](const Corpus& c) {
      std::vector<std::string> rows;
      for (const Utterance& row : c.rows) rows.push_back(row.text);
      return rows;
    };
    drift = drift_between(model, texts(read_corpora(r.compare, r.data.options())), texts(corpus), session);
    r.options.drift = &*drift;
  }
  const Report made = make_report(model, corpus, book, session, r.options);
  if (r.table) print_table(made.survey, book);
  if (drift) fmt::print("{}", print(*drift));
  Replacement file(r.out, kOp);
  file.file().write(made.page);
  file.commit();
  fmt::print("{} of {} utterances right; {} mistakes shown\nwrote {} ({:.1f} MB): open it in a browser\n",
             made.right, made.utterances, made.shown, r.out, static_cast<double>(made.page.size()) / 1e6);
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("report", "A page that shows what each head does and why mistakes were made");
  word->footer(
      "Example: headwise report model test.tsv --out report.html\n"
      "The page needs no network; it holds the utterances that were answered wrongly.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote")->required();
  word->add_option("data", r->data.files, "Files of labelled texts");
  word->add_flag("--builtin", r->data.builtin, "The test split of the built-in corpus instead");
  add_column_options(*word, r->data);
  word->add_option("--out", r->out, "The page")->capture_default_str();
  word->add_option("--compare", r->compare,
                   "Texts of before, as last month's: labels and words that moved since are shown");
  word->add_option("--roles", r->roles, "Further rows of classes and roles; see docs/report.md");
  word->add_option("--mistakes", r->options.mistakes, "Mistakes to show at most")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--utterances", r->options.survey.utterances, "Utterances to judge heads by, at most")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--sentence", r->sentences, "Sentences of your own, first in the gallery");
  word->add_option("--encoder", r->encoder,
                   "Folder of a pretrained encoder, to show its heads in the gallery");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  add_device_option(*word, r->device);
  word->add_flag("--redact", r->options.redact, "Mask digits and what looks like a name");
  r->options.language.clear();
  add_language_option(*word, r->options.language);
  word->add_flag("--table", r->table, "Also print the heads, their figures and roles");
  word->callback([r, &exit_code] { exit_code = report(*r); });
}

}  // namespace headwise::cli
