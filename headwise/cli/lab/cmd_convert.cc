// headwise convert: a model whose heads share keys and values, or one space of queries and keys.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "headwise/base/context.h"
#include "headwise/cli/lab/lab_tune.h"
#include "headwise/intent/training/evaluation.h"
#include "headwise/lab/convert/convert.h"
#include "headwise/lab/convert/share_scores.h"
#include "headwise/lab/decoder/decoder_convert.h"
#include "headwise/lab/model/texts.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "convert";
constexpr Index kMostTokens = 256;  // of a text of a decoder

struct Request {
  std::string model, out, by = "aligned", texts;
  Index kv_heads = 0, shared = 0, most = 200;
  int threads = 0, steps = 100;
  TuneChoice tune;
};

MergeBy by_name(const std::string& word) {
  for (std::size_t i = 0; i < std::size(kMergeNames); ++i)
    if (kMergeNames[i] == word) return static_cast<MergeBy>(i);
  throw Error(ErrorKind::bad_argument, text(kOp, ": --by is ", word, "; give mean, first or aligned"));
}

void print_layers(const std::vector<LayerMerge>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::string groups;
    for (const auto& group : layers[i].groups) {
      groups += groups.empty() ? "" : " |";
      for (const Index h : group) groups += fmt::format(" {}", h);
    }
    fmt::print("  layer {:<3} keys off by {:5.1f} %, values by {:5.1f} %; heads that share:{}\n", i,
               100 * layers[i].keys, 100 * layers[i].values, groups);
  }
}

/// How much smaller the model is, and how far its answers moved.
void print_change(const LabModel& model, const LabModel& made, const std::vector<std::string>& texts,
                  Session& session) {
  fmt::print("  parameters {} -> {}\n", model.params().count(), made.params().count());
  if (texts.empty()) return;
  const AnswerChange change = change_of(model, made, texts, session);
  if (model.labels())
    fmt::print("  on {} texts: KL {:.4f} nats, the same answer to {:.1f} %\n", change.texts, change.kl,
               100 * change.same);
  else
    fmt::print("  on {} texts: cosine {:.4f} between vectors before and after\n", change.texts,
               change.cosine);
}

std::vector<std::string> texts_of(const Request& r, MergeBy by) {
  std::vector<std::string> texts;
  if (!r.texts.empty()) texts = read_texts(r.texts);
  if (static_cast<Index>(texts.size()) > r.most) texts.resize(static_cast<std::size_t>(r.most));
  require(by != MergeBy::aligned || !texts.empty(), ErrorKind::bad_argument, kOp,
          "heads are aligned on texts; give --texts, or --by mean");
  return texts;
}

/// Labelled rows to go on learning from, and those that judge it.
struct TuningRows {
  Corpus train = {}, dev = {};
};
TuningRows tuning_rows(const Request& r, const LabModel& model) {
  if (!r.tune.on) return {};
  require(model.labels(), ErrorKind::unsupported, kOp,
          "--tune goes on learning labels, which this model has none of; leave it out");
  require(!r.tune.files.empty(), ErrorKind::bad_argument, kOp,
          "--tune has no rows to learn from; give files of labelled texts behind it");
  TuningRows rows{.train = read_corpora(r.tune.files, {})};
  rows.dev = hold_out(rows.train, TrainingOptions{}.held_out, static_cast<std::uint64_t>(r.tune.seed));
  return rows;
}

/// Says what changed, writes the model, and, where it is asked, goes on training it before.
void finish(const Request& r, const LabModel& model, const EditedModel& edited, const TuningRows& rows,
            Session& session, const std::function<void(const LabModel&)>& say) {
  if (!r.tune.on) {
    model.save(edited, r.out, kOp, say);
    return;
  }
  const LabModel made(model.edited(edited, kOp));
  say(made);
  const Recognizer better = tuned(r.tune, made.recognizer(), rows.train, rows.dev, session, kOp);
  const auto right = [&](const Recognizer& m) {
    return 100 * evaluate(m, rows.dev, session, {}).exact.value();
  };
  fmt::print("  on {} held-out texts: {:.2f} % right, {:.2f} % converted, {:.2f} % tuned on {} texts\n",
             rows.dev.rows.size(), right(model.recognizer()), right(made.recognizer()), right(better),
             rows.train.rows.size());
  better.save(r.out);
}

int convert_decoder(const Request& r) {
  require(!r.tune.on, ErrorKind::unsupported, kOp,
          "--tune goes on learning labels, which a decoder has none of; leave it out");
  const MergeBy by = by_name(r.by);
  const LabDecoder model(r.model, kOp);
  Context ctx({.threads = r.threads});
  const std::vector<LabDecoder::Text> texts = model.read(texts_of(r, by), kMostTokens);
  const ConvertedDecoder c = share_kv(model, r.kv_heads, by, kv_grams(model, texts, ctx));
  model.save(c.edited, r.out, kOp, [&](const std::string& made) {
    print_layers(c.layers);
    if (texts.empty()) return;
    const Decoder before = model.without(HeadPlan(model.heads()), ctx),
                  after = LabDecoder(made, kOp).without(HeadPlan(model.heads()), ctx);
    fmt::print("  on {} texts: KL {:.4f} nats of the next token, its loss {:.4f} -> {:.4f}\n", texts.size(),
               next_token_kl(before, after, texts, ctx), next_token_loss(before, texts, ctx),
               next_token_loss(after, texts, ctx));
  });
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
  return kDone;
}

int convert(const Request& r) {
  if (holds_decoder(r.model)) return convert_decoder(r);
  const MergeBy by = by_name(r.by);
  const LabModel model(r.model);
  Session session({.threads = r.threads});
  const std::vector<std::string> texts = texts_of(r, by);
  const TuningRows rows = tuning_rows(r, model);
  const Converted c = share_kv(model, r.kv_heads, by, kv_grams(model, texts, session));
  finish(r, model, c.edited, rows, session, [&](const LabModel& made) {
    print_layers(c.layers);
    print_change(model, made, texts, session);
  });
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
  return kDone;
}

int share(const Request& r) {
  require(!holds_decoder(r.model), ErrorKind::unsupported, kOp, r.model,
          ": files of decoders have no place for a shared space of queries and keys; give a recogniser or a "
          "BERT-style encoder, or --kv-heads");
  const LabModel model(r.model);
  Session session({.threads = r.threads});
  const std::vector<std::string> texts = texts_of(r, MergeBy::mean);
  const TuningRows rows = tuning_rows(r, model);
  const SharedScores c = share_scores(model, r.shared, r.steps, session);
  finish(r, model, c.edited, rows, session, [&](const LabModel& made) {
    for (std::size_t i = 0; i < c.energy.size(); ++i)
      fmt::print("  layer {:<3} {} shared columns keep {:.2f} % of the energy of W_Q^T W_K\n", i, r.shared,
                 100 * c.energy[i]);
    print_change(model, made, texts, session);
  });
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
  return kDone;
}

int run(const Request& r) {
  require((r.kv_heads > 0) != (r.shared > 0), ErrorKind::bad_argument, kOp,
          "give --kv-heads for GQA, or --shared for collaborative heads; one of them");
  std::error_code none;
  require(!std::filesystem::equivalent(r.model, r.out, none), ErrorKind::bad_argument, kOp, r.out,
          ": is the model's own folder, which is never changed; choose another name");
  return r.shared > 0 ? share(r) : convert(r);
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("convert", "A model whose heads share keys: MHA to GQA, MQA or collaborative heads");
  word->footer(
      "Example: headwise convert model --kv-heads 2 --by aligned --texts texts.txt --out grouped\n"
      "         headwise convert model --kv-heads 2 --texts texts.txt --tune train.tsv --out tuned\n"
      "         headwise convert model --shared 32 --texts texts.txt --out collaborative");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote, a BERT-style encoder, or a decoder")
      ->required();
  word->add_option("--kv-heads", r->kv_heads, "Key/value heads of every layer from now on")
      ->check(size_check(1));
  word->add_option("--shared", r->shared, "Columns of one space of queries and keys that all heads weigh")
      ->check(size_check(1));
  word->add_option("--steps", r->steps, "Steps of least squares towards the shared space, at most")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  word->add_option("--by", r->by,
                   "mean of neighbours, the first of them, or aligned on texts before the mean")
      ->capture_default_str();
  word->add_option("--texts", r->texts,
                   "File of texts, one a line: aligned on them, and the change is measured on them");
  word->add_option("--most", r->most, "Texts that are read, at most")
      ->check(size_check(1))
      ->capture_default_str();
  add_tune_options(
      *word, r->tune,
      "Goes on training a recogniser on these files of labelled texts; 1 in 20 of them judge it");
  word->add_option("--out", r->out, "Folder of the new model")->required();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, word, &exit_code] {
    r->tune.read(*word);
    exit_code = run(*r);
  });
}

}  // namespace headwise::cli
