// headwise survey: what every head of a model does on texts, beside a shuffled model and chance.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <sstream>

#include "headwise/cli/args/args.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/lab/survey/head_survey.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "survey";
constexpr Index kMostBytes = Index{1} << 30;

struct Request {
  std::string model, texts, out, conllu, pairs, part;
  HeadSurveyOptions options;
  int threads = 0;
};

std::string last_of(const std::string& name) {
  const std::filesystem::path path(name);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Texts of the file, their translations behind a tab included where a decoder of a translator reads them.
std::vector<std::string> texts_of(const Request& r) {
  std::vector<std::string> texts = read_texts(r.texts);
  if (!r.options.part || *r.options.part == AttentionPart::source) return texts;
  std::istringstream lines(read_text(r.texts, kMostBytes, kOp));
  texts.clear();
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != line.npos) texts.push_back(line);
  }
  return texts;
}

int survey(Request& r) {
  for (std::size_t i = 0; !r.part.empty() && i < std::size(kPartNames); ++i)
    if (kPartNames[i] == r.part) r.options.part = static_cast<AttentionPart>(i);
  const std::vector<std::string> texts = texts_of(r);
  if (!r.conllu.empty()) r.options.related = read_conllu(r.conllu);
  if (!r.pairs.empty())
    for (RelatedText& t : read_pairs(r.pairs)) r.options.related.push_back(std::move(t));
  if (isatty(STDERR_FILENO) != 0)
    r.options.progress = [](double share) {
      fmt::print(stderr, "\rlooking at the heads: {:3.0f} %{}", 100 * share, share < 1 ? "" : "\n");
    };
  const HeadSurvey s = survey_model(r.model, texts, r.threads, r.options);
  replace_folder(r.out, "survey.json", kOp, [&](const std::string& part) {
    write_file(part + "/survey.json", survey_json(s), kOp);
    write_file(part + "/heads.csv", survey_csv(s), kOp);
    write_file(part + "/depth.csv", depth_csv(s), kOp);
    write_file(part + "/path.csv", path_csv(s), kOp);
    write_file(part + "/apart.csv", apart_csv(s), kOp);
    write_file(part + "/map.svg", survey_map(s), kOp);
    write_file(part + "/index.html", survey_page(s, last_of(r.model), last_of(r.texts)), kOp);
  });
  if (s.shortened > 0)
    fmt::print(
        stderr,
        "headwise: survey: {} of {} texts are longer than the model or --tokens; their beginnings were "
        "read\n",
        s.shortened, s.texts);
  for (const SurveyedModelHead& h : s.heads) {
    if (h.roles.empty()) continue;
    std::string roles;
    for (const std::string& role : h.roles) roles += (roles.empty() ? "" : ", ") + role;
    fmt::print("  layer {:<3} head {:<3} {}\n", h.layer, h.head, roles);
  }
  fmt::print(
      "{} heads on {} texts ({} tokens)\nwrote {}/index.html, survey.json, heads.csv, depth.csv, path.csv, "
      "apart.csv, map.svg\n",
      s.heads.size(), s.texts, s.tokens, r.out);
  return kDone;
}

}  // namespace

void add_survey(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand(
      "survey", "What every head of a model does on texts, beside a shuffled model and chance");
  word->footer(
      "Example: headwise survey model --texts texts.txt --out survey\n"
      "         headwise survey stories260K.bin --texts texts.txt --conllu dev.conllu.gz --out survey");
  const auto r = std::make_shared<Request>();
  word->add_option(
          "model", r->model,
          "A recogniser, a BERT-style encoder, a translator, or a decoder as headwise generate reads it")
      ->required();
  word->add_option("--texts", r->texts, "File of texts, one a line")->required();
  word->add_option("--out", r->out, "Folder of the page and the figures")->required();
  word->add_option(
          "--part", r->part,
          "Of a translator: source, its encoder; own or cross, its decoder, whose texts are a source, "
          "a tab and its translation")
      ->check(CLI::IsMember({"own", "cross", "source"}));
  word->add_option("--conllu", r->conllu, "File of dependency trees: which heads find which relation");
  word->add_option("--pairs", r->pairs, "File of pairs: name, text, word and word with tabs between");
  word->add_option("--most", r->options.texts, "Texts that are read, at most")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--tokens", r->options.tokens, "Tokens of a text, at most")
      ->check(size_check(8))
      ->capture_default_str();
  word->add_option("--apart", r->options.apart, "Texts on which heads are held against each other")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--flow", r->options.flow, "Short texts whose largest flows are taken")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--collapse", r->options.collapse,
                   "Texts whose rank collapse is taken, with and without residual, feed-forward and norms")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--gradients", r->options.gradients, "Texts of which gradients of the weights are taken")
      ->check(size_check())
      ->capture_default_str();
  word->add_flag(
      "--rows-only", r->options.rows_only,
      "Figures of rows of weights alone: no shuffled model, chance, roles, matrices, map or depth");
  word->add_option("--clusters", r->options.clusters, "Clusters of heads")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--least", r->options.least, "Relations of a name before it may be a role")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--seed", r->options.seed, "Of the shuffled model, random tokens and chance")
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = survey(*r); });
}

}  // namespace headwise::cli
