#include <algorithm>
#include <map>
#include <set>

#include "headwise/intent/corpus/report.h"
#include "headwise/intent/training/training.h"
#include "headwise/text/train_wordpiece.h"
#include "headwise/train/checkpoints/crc32c.h"

namespace headwise {
namespace {

constexpr const char* kOp = "train";

/// Labels, number of labels a text and whether a text may have none, as the rows show them.
RecognizerConfig with_labels(RecognizerConfig c, const Corpus& train, const TrainingOptions& o) {
  require(!train.rows.empty(), ErrorKind::bad_argument, kOp, "there are no rows to learn from; give some");
  require_trainable(train);
  std::set<std::string> names;
  bool several = false, none = false;
  for (const Utterance& row : train.rows) {
    names.insert(row.labels.begin(), row.labels.end());
    several = several || row.labels.size() > 1;
    none = none || row.labels.empty();
  }
  names.erase(o.out_of_scope);
  c.multi_label = o.multi_label.value_or(several);
  require(c.multi_label || !several, ErrorKind::bad_argument, kOp, train.name,
          ": some rows have several labels but the model is to give one; let it give several");
  c.at_least_one = !none;
  c.labels.assign(names.begin(), names.end());
  require(c.labels.size() >= 2, ErrorKind::bad_argument, kOp, train.name, ": there are ", c.labels.size(),
          " labels to learn; there must be two or more to tell apart");
  return c;
}

}  // namespace

Corpus hold_out(Corpus& corpus, double share, std::uint64_t seed) {
  require(share > 0 && share < 1, ErrorKind::bad_argument, kOp, "held_out is ", share,
          "; give a share between 0 and 1");
  Corpus dev{.name = corpus.name + " (held out)", .rows = {}}, rest{.name = corpus.name, .rows = {}};
  std::map<std::string, Index> left;
  for (const Utterance& row : corpus.rows)
    for (const std::string& label : row.labels) ++left[label];
  const auto draw_of = [&](const Utterance& row) {
    Crc32c crc;
    crc.add(text_key(row.text));
    return std::uint64_t{Philox::block(seed, {crc.value(), 0, 0, 0xdef0u})[0]};
  };
  const auto is_last = [&](const Utterance& row) {
    return std::any_of(row.labels.begin(), row.labels.end(),
                       [&](const std::string& label) { return left[label] <= 1; });
  };
  std::uint64_t least = ~std::uint64_t{0};  // of few rows none may be drawn: then the nearest is
  for (const Utterance& row : corpus.rows)
    if (!is_last(row)) least = std::min(least, draw_of(row));
  const std::uint64_t limit = DropoutRule::of(share, 0).threshold;
  for (Utterance& row : corpus.rows) {
    const std::uint64_t draw = draw_of(row);
    const bool taken = !is_last(row) && (draw < limit || draw == least);
    if (taken)
      for (const std::string& label : row.labels) --left[label];
    (taken ? dev : rest).rows.push_back(std::move(row));
  }
  corpus = std::move(rest);
  return dev;
}

Start from_scratch(RecognizerConfig config, const Corpus& train, const TrainingOptions& o) {
  config = with_labels(std::move(config), train, o);
  std::vector<std::string_view> texts;
  for (const Utterance& row : train.rows) texts.push_back(row.text);
  // A character may be two pieces, one that begins words and one that goes on: rare ones give way.
  const WordPieceTraining training{
      .pieces = o.pieces, .alphabet = max_of(1, (o.pieces - 5) / 2), .words = config.words};
  return {.config = std::move(config), .vocabulary = train_wordpiece(texts, training)};
}

Start from_encoder(RecognizerConfig config, Vocabulary vocabulary, const ParamSet& encoder,
                   const Corpus& train, const TrainingOptions& o) {
  return {.config = with_labels(std::move(config), train, o),
          .vocabulary = std::move(vocabulary),
          .encoder = &encoder};
}

TrainingOptions compound_training() {
  TrainingOptions o;
  o.epochs = 8, o.batch = 256, o.weight_decay = 0.01, o.average = 0.999, o.pieces = 1600;
  return o;
}

Start from_recognizer(const Recognizer& model) {
  return {model.config(), model.tokenizer().vocabulary(), nullptr, &model.params()};
}

}  // namespace headwise
