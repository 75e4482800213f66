#include "headwise/intent/training/train_forms.h"

#include <cstdio>

#include "headwise/intent/compound/connectors.h"
#include "headwise/intent/compound/pieces.h"

namespace headwise {
namespace {

constexpr const char* kOp = "train";

struct Form {
  TrainWords words;
  Start start;
};

Form form_of(const TrainWords& asked, const char* compound, const Pretrained* pretrained,
             const Corpus& train) {
  TrainWords words = asked;
  const TrainingOptions& given = asked.training;
  TrainingOptions& t = words.training;
  words.compound = compound;
  if (words.compound == "labels") t.connectors.clear();
  take_recipes(words);
  t.run_folder = given.run_folder.empty() ? "" : text(given.run_folder, '/', compound);
  t.out = given.out, t.screen = given.screen, t.each_epoch = given.each_epoch, t.compute = given.compute;
  t.device = given.device;
  t.out_of_scope = given.out_of_scope, t.multi_label = given.multi_label, t.patience = given.patience;
  const RecognizerConfig config = config_of(words, pretrained);
  Start start = pretrained ? from_encoder(config, pretrained->vocabulary, pretrained->encoder, train, t)
                           : from_scratch(config, train, t);
  check(start.config);
  return {std::move(words), std::move(start)};
}

Index rows_that_cut(const Form& f, const Corpus& train) {
  const std::vector<std::string>& given = f.words.training.connectors;
  return cut_rows(train, f.start.config.labels,
                  given.empty() ? std::span<const std::string>(default_connectors()) : given)
      .cut;
}

TrainedRecognizer learn(const Form& f, const Corpus& train, const Corpus& dev, Session& session) {
  if (f.words.training.out) *f.words.training.out << "compound: " << f.words.compound << std::endl;
  return train_recognizer(f.start, train, dev, f.words.training, session);
}

std::string percent(double share) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.2f %%", 100 * share);
  return digits;
}

}  // namespace

TrainedRecognizer train_forms(const TrainWords& words, const Pretrained* pretrained, const Corpus& train,
                              const Corpus& dev, Session& session) {
  require(words.compound == "auto", ErrorKind::bad_argument, kOp, "--compound is \"", words.compound,
          "\"; both forms are trained with auto");
  const Form cut = form_of(words, "cut", pretrained, train);
  const Form asks = form_of(words, "labels", pretrained, train);
  if (rows_that_cut(cut, train) == 0) {
    TrainedRecognizer made = learn(asks, train, dev, session);
    made.card += "\nNo row of several intents could be cut, so labels are asked.\n";
    return made;
  }
  TrainedRecognizer by_cuts = learn(cut, train, dev, session);
  if (by_cuts.ending == Ending::interrupted) return by_cuts;
  TrainedRecognizer by_labels = learn(asks, train, dev, session);
  if (by_labels.ending == Ending::interrupted) return by_labels;
  const double one = by_cuts.dev.exact.value(), other = by_labels.dev.exact.value();
  TrainedRecognizer& best = other >= one ? by_labels : by_cuts;
  const std::string said =
      text("Whether to cut texts or to ask by label was chosen on ", dev.name, ", by exact match: cut ",
           percent(one), ", asked by label ", percent(other), '.');
  best.card += '\n' + said + '\n';
  best.seconds = by_cuts.seconds + by_labels.seconds;
  if (words.training.out) *words.training.out << said << std::endl;
  return std::move(best);
}

}  // namespace headwise
