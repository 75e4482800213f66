// headwise cut: a model without the heads it needs least.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/args/corpora.h"
#include "headwise/cli/lab/lab_tune.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/evaluation.h"
#include "headwise/lab/cut/cut_curve.h"
#include "headwise/lab/cut/keep_roles.h"
#include "headwise/lab/decoder/decoder_cut.h"
#include "headwise/lab/model/texts.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "cut";
constexpr Index kMostBytes = Index{1} << 24;  // of a plan

struct Request {
  std::string model, out, plan, rank = "off", sum = "text", within, roles, conllu, curve;
  CorpusChoice data;
  Index keep = 0, texts = 400, least = 1, states = 6;
  int threads = 0;
  TuneChoice tune;
  bool across = false, json = false;
};

template <class E>
E named(const char* option, const std::string& word, std::span<const std::string_view> names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<E>(i);
    all += text(i ? ", " : "", names[i]);
  }
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", option, " is ", word, "; give one of ", all));
}

/// "1%" or "0.01".
double share_of(const std::string& words) {
  std::size_t end = 0;
  double x = -1;
  try {
    x = std::stod(words, &end);
  } catch (const std::exception&) {
  }
  const std::string rest = words.substr(end);
  require(x >= 0 && x < 1e6 && (rest.empty() || rest == "%"), ErrorKind::bad_argument, kOp,
          "--loss-within is ", words, "; give a share such as 1% or 0.01");
  return rest == "%" ? x / 100 : x;
}

std::string list_of(const std::vector<Index>& all) {
  std::string s;
  for (const Index i : all) s += text(s.empty() ? "" : " ", i);
  return s.empty() ? "none" : s;
}

/// Exact matches of labelled texts; -1 for an encoder.
double right_share(const LabModel& model, const Corpus& corpus, Session& session) {
  if (!model.labels()) return -1;
  return evaluate(model.recognizer(), corpus, session, {}).exact.value();
}

void print_plan(const HeadPlan& plan) {
  for (std::size_t i = 0; i < plan.heads.size(); ++i)
    fmt::print("  layer {:<3} keeps {:>3} of {:<3} cut: {}{}\n", i, plan.left(static_cast<Index>(i)),
               plan.heads[i], list_of(plan.cut[i]),
               plan.left(static_cast<Index>(i)) > 0 ? "" : "; its residual path goes on alone");
}

nlohmann::ordered_json state_json(const CutState& s) {
  nlohmann::ordered_json j = {
      {"heads", s.heads}, {"parameters", s.parameters}, {"kv_bytes", s.kv_bytes}, {"loss", s.loss}};
  if (s.right >= 0) j["right"] = s.right;
  j.update({{"seconds", s.seconds}, {"time", s.time}});
  return j;
}

void print_states(const std::vector<CutState>& states) {
  if (states.empty()) return;
  const bool labels = states[0].right >= 0;
  fmt::print("  heads  {:>9}  parameters  bytes of k, v   ms a text   time\n",
             labels ? "right" : "1 - cosine");
  for (const CutState& s : states)
    fmt::print("  {:>5}  {:>9}  {:>10}  {:>13}  {:>10.3f}  {:>4.0f} %\n", s.heads,
               labels ? fmt::format("{:.2f} %", 100 * s.right) : fmt::format("{:.4f}", s.loss), s.parameters,
               s.kv_bytes, 1e3 * s.seconds, 100 * s.time);
}

void write_curve(const std::vector<CutState>& states, const Request& r) {
  replace_folder(r.curve, "curve.csv", kOp, [&](const std::string& part) {
    write_file(part + "/curve.csv", curve_csv(states), kOp);
    write_file(part + "/curve.svg", curve_svg(states), kOp);
    write_file(part + "/index.html", curve_page(states, r.model), kOp);
  });
}

void print(const Request& r, const LabModel& model, const ChosenCut& cut, const EditedModel& edited,
           Session& session, const Corpus* corpus, const std::vector<CutState>& states) {
  const LabModel small(r.out);
  const Index before = model.params().count(), after = model.count_after(edited);
  const double was = corpus ? right_share(model, *corpus, session) : -1,
               is = corpus ? right_share(small, *corpus, session) : -1;
  if (r.json) {
    nlohmann::ordered_json j = {{"heads_before", HeadPlan(cut.plan.heads).left()},
                                {"heads_after", cut.plan.left()},
                                {"parameters_before", before},
                                {"parameters_after", after},
                                {"plan", nlohmann::ordered_json::parse(plan_text(cut.plan))}};
    if (corpus) j.update({{"loss_before", cut.loss_before}, {"loss_after", cut.loss_after}});
    if (was >= 0) j.update({{"exact_before", was}, {"exact_after", is}});
    for (const CutPoint& p : cut.curve) j["curve"].push_back({{"heads", p.left}, {"loss", p.loss}});
    for (const HeadName& h : cut.gone) j["order"].push_back({h.layer, h.head});
    for (const CutState& s : states) j["states"].push_back(state_json(s));
    fmt::print("{}\n", j.dump(2));
    return;
  }
  print_states(states);
  print_plan(cut.plan);
  fmt::print("  heads      {} -> {}\n  parameters {} -> {}\n", HeadPlan(cut.plan.heads).left(),
             cut.plan.left(), before, after);
  if (corpus)
    fmt::print("  {} {:.4f} -> {:.4f}\n", model.labels() ? "loss      " : "1 - cosine", cut.loss_before,
               cut.loss_after);
  if (was >= 0) fmt::print("  right      {:.2f} % -> {:.2f} %\n", 100 * was, 100 * is);
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
}

/// Where a folder is, or would be.
std::filesystem::path place_of(const std::string& folder) {
  return (std::filesystem::absolute(folder) / "").lexically_normal();
}

/// Labelled texts of a recogniser; of an encoder any texts, one a line.
Corpus corpus_of(const Request& r, bool labels) {
  if (labels || r.data.builtin) {
    Corpora all = read_corpora_of(r.data, kOp);
    return r.data.builtin ? std::move(all.dev) : std::move(all.train);
  }
  Corpus c;
  for (const std::string& path : r.data.files) {
    c.name = path;
    for (std::string& one : read_texts(path)) c.rows.push_back({std::move(one), {}, {}, 0});
  }
  return c;
}

/// Heads that stay for what they do on these texts.
std::vector<HeadName> kept_by_role(const Request& r, const Corpus& corpus) {
  if (r.roles.empty()) return {};
  HeadSurveyOptions o{.texts = r.texts, .apart = 0};
  if (!r.conllu.empty()) o.related = read_conllu(r.conllu);
  const std::vector<std::string> roles = parse_roles(r.roles, o.related, kOp);
  std::vector<std::string> texts;
  for (const Utterance& row : corpus.rows) texts.push_back(row.text);
  return heads_with_roles(survey_model(r.model, texts, r.threads, o), roles);
}

/// Rows to go on learning from: files, or the built-in corpus.
Corpus tuning_rows(const Request& r) {
  if (!r.tune.on) return {};
  require(r.tune.files.empty() ? r.data.builtin : true, ErrorKind::bad_argument, kOp,
          "--tune has no rows to learn from; give files of labelled texts behind it");
  return read_corpora_of({.files = r.tune.files, .builtin = r.tune.files.empty()}, kOp).train;
}

/// The plan of the file, or what the ranking leaves.
ChosenCut chosen_cut(const Request& r, CutTrial* trial, const std::vector<Index>& heads,
                     const Corpus& corpus) {
  ChosenCut chosen{.plan = HeadPlan(heads)};
  if (!r.plan.empty()) {
    chosen.plan = parse_plan(read_text(r.plan, kMostBytes, kOp), text(kOp, ": ", r.plan), heads);
    if (trial) chosen.loss_before = trial->whole_loss(), chosen.loss_after = trial->loss_without(chosen.plan);
    return chosen;
  }
  RankOptions o{.rank = named<HeadRank>("--rank", r.rank, kRankNames),
                .sum = named<MichelSum>("--michel-sum", r.sum, kMichelNames),
                .by_layer = !r.across,
                .least_in_layer = r.least,
                .keep = kept_by_role(r, corpus)};
  if (isatty(STDERR_FILENO) != 0)
    o.progress = [](double share) {
      fmt::print(stderr, "\rranking heads: {:3.0f} %{}", 100 * share, share < 1 ? "" : "\n");
    };
  const Index most = r.keep > 0 ? chosen.plan.left() - r.keep : chosen.plan.left();
  return choose_cut(*trial, rank_heads(*trial, o, max_of(0, most)), r.keep,
                    r.within.empty() ? 0 : share_of(r.within));
}

int cut_decoder(const Request& r) {
  require(!r.tune.on, ErrorKind::unsupported, kOp,
          "--tune goes on learning labels, which a decoder has none of; leave it out");
  require(
      r.curve.empty(), ErrorKind::unsupported, kOp,
      "--curve runs recognisers and encoders of every size on the way; leave it out, --json has a decoder's "
      "loss by heads");
  require(!r.data.builtin, ErrorKind::bad_argument, kOp,
          "--builtin is a corpus of labels; give files of texts, one a line");
  const LabDecoder model(r.model, kOp);
  Context ctx({.threads = r.threads});
  const bool told = !r.data.files.empty();
  require(told || !r.plan.empty(), ErrorKind::bad_argument, kOp,
          "heads are ranked on texts; give files of texts, or a --plan");
  const Corpus corpus = told ? corpus_of(r, false) : Corpus{};
  std::vector<std::string> texts;
  for (const Utterance& row : corpus.rows) texts.push_back(row.text);
  std::unique_ptr<DecoderTrial> trial;
  if (told) trial = std::make_unique<DecoderTrial>(model, texts, r.texts, ctx);
  const ChosenCut chosen = chosen_cut(r, trial.get(), model.heads(), corpus);
  const EditedDecoder edited = cut_heads(model, chosen.plan);
  model.save(edited, r.out, kOp);
  if (r.json) {
    nlohmann::ordered_json j = {{"heads_before", HeadPlan(chosen.plan.heads).left()},
                                {"heads_after", chosen.plan.left()},
                                {"heads", edited.heads},
                                {"kv_heads", edited.kv_heads},
                                {"plan", nlohmann::ordered_json::parse(plan_text(chosen.plan))}};
    if (told) j.update({{"loss_before", chosen.loss_before}, {"loss_after", chosen.loss_after}});
    for (const CutPoint& p : chosen.curve) j["curve"].push_back({{"heads", p.left}, {"loss", p.loss}});
    fmt::print("{}\n", j.dump(2));
    return kDone;
  }
  print_plan(chosen.plan);
  fmt::print("  heads of a layer {} -> {}, key/value heads {} -> {}\n", model.config().heads, edited.heads,
             model.config().kv_heads, edited.kv_heads);
  if (told) fmt::print("  loss of the next token {:.4f} -> {:.4f}\n", chosen.loss_before, chosen.loss_after);
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
  return kDone;
}

int cut(const Request& r) {
  const int wishes = (r.keep > 0) + !r.within.empty() + !r.plan.empty();
  require(wishes == 1, ErrorKind::bad_argument, kOp, "got ", wishes,
          " of --keep, --loss-within and --plan; give one of them");
  std::error_code none;
  require(!std::filesystem::equivalent(r.model, r.out, none), ErrorKind::bad_argument, kOp, r.out,
          ": is the model's own folder, which is never changed; choose another name");
  if (holds_decoder(r.model)) return cut_decoder(r);
  const LabModel model(r.model);
  const std::vector<Index> heads = model.heads(kOp);
  Session session({.threads = r.threads});
  const bool told = r.data.builtin || !r.data.files.empty();
  require(told || !r.plan.empty(), ErrorKind::bad_argument, kOp,
          "heads are ranked on texts; give files of texts, or --builtin, or a --plan");
  const Corpus corpus = told ? corpus_of(r, model.labels()) : Corpus{};
  require(!r.tune.on || (model.labels() && told), ErrorKind::bad_argument, kOp,
          "--tune goes on learning labels; it needs a recogniser and labelled texts to judge by");
  require(r.curve.empty() || r.plan.empty(), ErrorKind::bad_argument, kOp,
          "--curve follows heads in the order in which they go, and a plan has none; give --keep or "
          "--loss-within");
  require(r.curve.empty() || place_of(r.curve) != place_of(r.out), ErrorKind::bad_argument, kOp,
          "--curve and --out are the same folder; choose another name for one");
  const Corpus rows = tuning_rows(r);
  require(r.roles.empty() || told, ErrorKind::bad_argument, kOp,
          "--keep-roles looks at heads on texts; give files of texts, or --builtin");
  std::unique_ptr<HeadTrial> trial;
  if (told) trial = std::make_unique<HeadTrial>(model, corpus, r.texts, session);
  const ChosenCut chosen = chosen_cut(r, trial.get(), heads, corpus);
  const EditedModel edited = cut_heads(model, chosen.plan);
  std::vector<CutState> states;
  if (!r.curve.empty())
    states = cut_curve(model, *trial, corpus, chosen.gone,
                       {.states = r.states, .texts = r.texts, .scratch = r.curve + ".part"}, session);
  if (!r.curve.empty()) write_curve(states, r);
  if (r.tune.on)
    tuned(r.tune, model.edited(edited, kOp), rows, corpus, session, kOp).save(r.out);
  else
    model.save(edited, r.out, kOp);
  print(r, model, chosen, edited, session, told ? &corpus : nullptr, states);
  return kDone;
}

}  // namespace

void add_cut(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("cut", "A smaller model without the heads it needs least");
  word->footer(
      "Example: headwise cut model test.tsv --keep 9 --rank michel --out small\n"
      "         headwise cut model --builtin --loss-within 1% --rank greedy --out small\n"
      "         headwise cut model dev.tsv --keep 9 --keep-roles positional --tune train.tsv --out small\n"
      "         headwise cut model --plan plan.json --out small");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote, a BERT-style encoder, or a decoder")
      ->required();
  word->add_option("data", r->data.files,
                   "Files of texts on which heads are ranked; a recogniser needs labels");
  word->add_flag("--builtin", r->data.builtin, "The built-in corpus instead");
  word->add_option("--out", r->out, "Folder of the smaller model")->required();
  word->add_option("--keep", r->keep, "Heads that stay, of all layers together")->check(size_check(1));
  word->add_option("--loss-within", r->within, "As many go as the loss allows: 1% above the whole model's");
  word->add_option("--plan", r->plan, "File that says which heads go");
  word->add_option("--rank", r->rank,
                   "off: by the loss without the head; michel: by its slope; greedy: anew after each")
      ->capture_default_str();
  word->add_option("--michel-sum", r->sum, "What |dL/dgate| is summed over: text, token or batch")
      ->capture_default_str();
  word->add_option("--keep-roles", r->roles,
                   "Heads that stay for what they do, as headwise survey names it: positional,syntax,rare");
  word->add_option("--conllu", r->conllu, "File of dependency trees, for --keep-roles syntax");
  add_tune_options(*word, r->tune,
                   "Goes on training the smaller model on these files; with --builtin on its training texts");
  word->add_option("--curve", r->curve,
                   "Folder of a page, a picture and a table: what is right, parameters, bytes of keys and "
                   "values, and time, against heads kept");
  word->add_option("--states", r->states, "Of --curve: models that are cut and run on the way")
      ->check(size_check(2))
      ->capture_default_str();
  word->add_flag("--across-layers", r->across, "michel: compare scores of layers as they are");
  word->add_option("--least", r->least,
                   "Heads every layer keeps; 0: of a layer may stay its residual path alone")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--texts", r->texts, "Texts heads are ranked on, at most")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_flag("--json", r->json, "One JSON object");
  word->callback([r, word, &exit_code] {
    r->tune.read(*word);
    exit_code = cut(*r);
  });
}

}  // namespace headwise::cli
