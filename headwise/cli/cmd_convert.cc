// headwise convert: a model whose heads share keys and values.
#include <fmt/format.h>

#include <memory>

#include "headwise/cli/args.h"
#include "headwise/lab/convert.h"
#include "headwise/lab/texts.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "convert";

struct Request {
  std::string model, out, by = "aligned", texts;
  Index kv_heads = 0, most = 200;
  int threads = 0;
};

MergeBy by_name(const std::string& word) {
  for (std::size_t i = 0; i < std::size(kMergeNames); ++i)
    if (kMergeNames[i] == word) return static_cast<MergeBy>(i);
  throw Error(ErrorKind::bad_argument, text(kOp, ": --by is ", word, "; give mean, first or aligned"));
}

void print(const Converted& c, const LabModel& model, const LabModel& made,
           const std::vector<std::string>& texts, Session& session) {
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    std::string groups;
    for (const auto& group : c.layers[i].groups) {
      groups += groups.empty() ? "" : " |";
      for (const Index h : group) groups += fmt::format(" {}", h);
    }
    fmt::print("  layer {:<3} keys off by {:5.1f} %, values by {:5.1f} %; heads that share:{}\n", i,
               100 * c.layers[i].keys, 100 * c.layers[i].values, groups);
  }
  fmt::print("  parameters {} -> {}\n", model.params().count(), model.count_after(c.edited));
  if (texts.empty()) return;
  const AnswerChange change = change_of(model, made, texts, session);
  if (model.labels())
    fmt::print("  on {} texts: KL {:.4f} nats, the same answer to {:.1f} %\n", change.texts, change.kl,
               100 * change.same);
  else
    fmt::print("  on {} texts: cosine {:.4f} between vectors before and after\n", change.texts,
               change.cosine);
}

int convert(const Request& r) {
  const MergeBy by = by_name(r.by);
  const LabModel model(r.model);
  Session session({.threads = r.threads});
  std::vector<std::string> texts;
  if (!r.texts.empty()) texts = read_texts(r.texts);
  if (static_cast<Index>(texts.size()) > r.most) texts.resize(static_cast<std::size_t>(r.most));
  require(by != MergeBy::aligned || !texts.empty(), ErrorKind::bad_argument, kOp,
          "heads are aligned on texts; give --texts, or --by mean");
  const Converted c = share_kv(model, r.kv_heads, by, kv_grams(model, texts, session));
  model.save(c.edited, r.out, kOp, [&](const LabModel& made) { print(c, model, made, texts, session); });
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
  return kDone;
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("convert", "A model whose heads share keys and values: MHA to GQA or MQA");
  word->footer("Example: headwise convert model --kv-heads 2 --by aligned --texts texts.txt --out grouped");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote, or a BERT-style encoder")
      ->required();
  word->add_option("--kv-heads", r->kv_heads, "Key/value heads of every layer from now on")
      ->required()
      ->check(size_check(1));
  word->add_option("--by", r->by,
                   "mean of neighbours, the first of them, or aligned on texts before the mean")
      ->capture_default_str();
  word->add_option("--texts", r->texts,
                   "File of texts, one a line: aligned on them, and the change is measured on them");
  word->add_option("--most", r->most, "Texts that are read, at most")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--out", r->out, "Folder of the new model")->required();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->callback([r, &exit_code] { exit_code = convert(*r); });
}

}  // namespace headwise::cli
