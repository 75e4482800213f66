#include "headwise/cli/lab/lab_tune.h"

#include "headwise/cli/args/device.h"

namespace headwise::cli {

void TuneChoice::read(const CLI::App& word) {
  on = word.count("--tune") > 0;
  std::erase(files, "");  // what the parser gives for an option without a value
  require(on || word.count("--device") == 0, ErrorKind::bad_argument, word.get_name(),
          "--device says where --tune learns, and all else runs on the CPU; give --tune, or leave it out");
  if (on) where = named_device(device, word.get_name());
}

void add_tune_options(CLI::App& word, TuneChoice& choice, const std::string& help) {
  word.add_option("--tune", choice.files, help)->expected(0, -1);
  word.add_option("--epochs", choice.epochs, "Of --tune")->check(size_check(1))->capture_default_str();
  word.add_option("--rate", choice.rate, "Of --tune: the highest learning rate")->capture_default_str();
  word.add_option("--seed", choice.seed, "Of --tune")->check(size_check())->capture_default_str();
  word.add_option("--device", choice.device, "Of --tune, where the encoder learns: cpu, cuda, cuda:1 or auto")
      ->capture_default_str();
}

Recognizer tuned(const TuneChoice& choice, const Recognizer& model, const Corpus& rows, const Corpus& dev,
                 Session& session, std::string_view op) {
  TrainingOptions o;
  o.epochs = choice.epochs, o.rate = choice.rate, o.seed = static_cast<std::uint64_t>(choice.seed);
  o.device = choice.where;
  TrainedRecognizer made = train_recognizer(from_recognizer(model), rows, dev, o, session);
  require(made.ending != Ending::interrupted, ErrorKind::bad_argument, op,
          "training was stopped, so nothing was written; run it again");
  return std::move(made.model);
}

}  // namespace headwise::cli
