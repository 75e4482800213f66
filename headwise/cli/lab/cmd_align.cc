// headwise align: which word is whose translation, by a translator's cross-attention.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "headwise/cli/args/args.h"
#include "headwise/cli/lab/align.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/file.h"
#include "headwise/translation/align_words.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "align";
constexpr Index kMostBytes = Index{1} << 30;  // of a file of pairs

struct Request {
  std::string model, pairs, gold, out, back, merge = "grow-diag", step = "writes";
  std::vector<std::string> heads, back_heads;
  bool shares = false;
  int threads = 0;
};

std::string name_of(const HeadLinks& h) {
  return h.head ? fmt::format("{}.{}", h.head->layer, h.head->head) : "merged";
}

std::string lines_of(const HeadLinks& h) {
  std::string lines;
  for (const WordLinks& links : h.pairs) lines += pharaoh(links) + "\n";
  return lines;
}

/// Best first; equal ones in the order of the model.
void print_scores(std::vector<HeadLinks> all, std::size_t pairs) {
  std::stable_sort(all.begin(), all.end(), [](const HeadLinks& a, const HeadLinks& b) {
    return a.score.error_rate() < b.score.error_rate();
  });
  fmt::print("{} pairs, {} sure links\n{:<8}{:>8}{:>11}{:>8}{:>8}\n", pairs, all[0].score.sure, "head", "AER",
             "precision", "recall", "links");
  for (const HeadLinks& h : all)
    fmt::print("{:<8}{:>8.2f}{:>11.2f}{:>8.2f}{:>8}\n", name_of(h), 100 * h.score.error_rate(),
               100 * h.score.precision(), 100 * h.score.recall(), h.score.links);
}

int align(const Request& r) {
  AlignOptions options{.step = parse_step(r.step),
                       .rules = {.merge = parse_merge(r.merge), .shares = r.shares}};
  for (const std::string& head : r.heads) options.heads.push_back(parse_cross_head(head));
  for (const std::string& head : r.back_heads) options.back_heads.push_back(parse_cross_head(head));
  require(!r.back.empty() || r.back_heads.empty(), ErrorKind::bad_argument, kOp,
          "--back-head names a head of the other direction; give its translator with --back");
  const std::vector<SentencePair> pairs =
      parse_sentence_pairs(read_text(r.pairs, kMostBytes, kOp), text(kOp, ": ", r.pairs));
  require(!pairs.empty(), ErrorKind::bad_argument, kOp, r.pairs,
          " holds no pair; give lines of two sentences");
  std::vector<GoldPair> gold;
  if (!r.gold.empty()) {
    gold = parse_gold(read_text(r.gold, kMostBytes, kOp), text(kOp, ": ", r.gold));
    require(!gold.empty(), ErrorKind::bad_argument, kOp, r.gold, " holds no pair; write \"12: 0-0 1?2\"");
  }
  Session session({.threads = r.threads});
  const Translator model = Translator::load(r.model);
  const std::vector<WordWeights> weights = word_weights(model, pairs, options.step, session);
  std::vector<WordWeights> back;
  if (!r.back.empty())
    back = word_weights(Translator::load(r.back), turned_pairs(pairs), options.step, session);
  options.back = back;
  const std::vector<HeadLinks> all = align_words(weights, options, gold);
  if (!r.out.empty())
    replace_folder(r.out, "merged.txt", kOp, [&](const std::string& part) {
      for (const HeadLinks& h : all) write_file(part + "/" + name_of(h) + ".txt", lines_of(h), kOp);
    });
  if (!gold.empty())
    print_scores(all, gold.size());
  else if (r.out.empty())
    fmt::print("{}", lines_of(all[0]));
  if (!r.out.empty())
    fmt::print("wrote {}/merged.txt and a file for each of {} heads\n", r.out, all.size() - 1);
  return kDone;
}

}  // namespace

void add_align(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("align", "Which word is whose translation, by a translator's cross-attention");
  word->footer(
      "Example: headwise align translator pairs.tsv\n"
      "         headwise align translator pairs.tsv --gold gold.txt\n"
      "Lines of pairs have a tab or \" ||| \" between sentence and translation; links are \"0-0 1-2\",\n"
      "source word - target word. The page docs/translation.md says how words are split.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "A translator's folder")->required();
  word->add_option("pairs", r->pairs, "File of sentence pairs, one a line")->required();
  word->add_option("--head", r->heads, "A head that is merged, such as 1.3; may be given again; none: all");
  word->add_option("--merge", r->merge,
                   "argmax, intersection, union, grow-diag, grow-diag-final or grow-diag-final-and")
      ->capture_default_str();
  word->add_option("--step", r->step, "Whose row a target word has: the step that writes it, or reads it")
      ->capture_default_str();
  word->add_flag("--shares", r->shares,
                 "Weights count by their share of what a source word gets, then of the target word's row");
  word->add_option("--back", r->back,
                   "Folder of a translator of the other direction: it says each source word's target word");
  word->add_option("--back-head", r->back_heads,
                   "A head of --back, such as 1.3; may be given again; none: all");
  word->add_option("--gold", r->gold, "File of links by hand, \"12: 0-0 1?2\": error rates of every head");
  word->add_option("--out", r->out, "Folder of the links: merged.txt and a file for each head");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = align(*r); });
}

}  // namespace headwise::cli
