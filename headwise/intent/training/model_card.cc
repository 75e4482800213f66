#include "headwise/intent/training/model_card.h"

#include <charconv>

#include "headwise/base/words.h"
#include "headwise/intent/recognizer/model_folder.h"

namespace headwise {
namespace {

std::string number(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

}  // namespace

void describe(TrainedRecognizer& result, const Described& d) {
  const TrainingOptions& o = d.options;
  const std::size_t rows = d.train.rows.size();
  const RecognizerConfig& c = result.model.config();
  std::string figures = result.dev.json();
  result.metrics = text(
      "{\n  \"train\": ", json_string(d.train.name), ",\n  \"rows\": ", rows,
      ",\n  \"labels\": ", c.labels.size(), ",\n  \"parameters\": ", result.model.params().count(),
      ",\n  \"seed\": ", o.seed, ",\n  \"epochs\": ", result.epochs, ",\n  \"batch\": ", o.batch,
      ",\n  \"rate\": ", number(o.rate), ",\n  \"encoder_rate\": ", number(o.encoder_rate),
      ",\n  \"layer_decay\": ", number(o.layer_decay),
      ",\n  \"learn_embedding\": ", o.learn_embedding ? "true" : "false",
      ",\n  \"weight_decay\": ", number(o.weight_decay),
      ",\n  \"label_smoothing\": ", number(o.label_smoothing),
      ",\n  \"token_dropout\": ", number(o.token_dropout), ",\n  \"average\": ", number(o.average),
      ",\n  \"compute\": \"", o.compute, "\",\n  \"encoder\": \"", d.given_encoder ? "given" : "from scratch",
      "\",\n  \"numerics\": ", json_string(d.numerics), ",\n  \"seconds\": ", number(result.seconds),
      ",\n  \"curve\": ", d.curve, ",\n  \"dev\": ", figures, "}\n");
  result.card = text("# An intent recogniser made with headwise\n\nLearnt from ", rows, " utterances of ",
                     d.train.name, ", ", c.labels.size(), " labels, ", c.multi_label ? "several" : "one",
                     " a text; heads `", c.encoder.heads, "`, ", result.model.params().count(),
                     " numbers. Judged on ", d.dev.name, ":\n\n```\n", result.dev.print(),
                     "```\n\nIt knows these labels and this kind of text alone. ", d.scope, "\n");
  if (c.cuts.on)
    result.card +=
        text("\nTexts of several intents are cut: spans of one intent each are read alone, at most ",
             c.cuts.most_intents, " of a text. Chosen on ", d.dev.name, ": shift ", number(c.cuts.shift),
             ", weight ", number(c.cuts.weight), ".\n");
}

}  // namespace headwise
