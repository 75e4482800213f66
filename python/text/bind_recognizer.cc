// hw.Recognizer: intents of texts; python/headwise/_recognizer.py gives answers their forms.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <iostream>

#include "headwise/analysis/answer_json.h"
#include "headwise/analysis/report/report.h"
#include "headwise/intent/training/scope/strangers.h"
#include "headwise/intent/training/train_forms.h"
#include "headwise/model/file.h"
#include "headwise/ops/device/named.h"
#include "python/arrays/contexts.h"
#include "python/text/bind_recognizer.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

constexpr const char* kOp = "recognizer";
using Options = std::vector<std::tuple<std::string, std::string>>;
using Labels = std::vector<std::vector<std::string>>;

struct RecognizerBox {
  RecognizerBox(const std::string& folder, int threads, const std::string& device)
      : session({.threads = threads}), model(Recognizer::load(folder)) {
    model.to(read_device(kOp, device), session.ctx);
  }
  Session session;
  Recognizer model;
  std::mutex turn;  // callers take turns on its memory
};

/// Files, or texts with their labels; both or neither is refused.
Corpus corpus_of(const std::vector<std::string>& files, const std::vector<std::string>& texts,
                 const Labels& labels, const CorpusOptions& options = {}) {
  if (!files.empty()) return read_corpora(files, options);
  Corpus c{.name = "the given texts", .rows = {}};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    require(!texts[i].empty(), ErrorKind::bad_argument, kOp, "text ", i,
            " is empty; fill it or leave it out");
    c.rows.push_back({texts[i], labels[i], {}, static_cast<Index>(i + 1)});
  }
  return c;
}

CorpusOptions columns_of(const std::tuple<std::string, std::string, std::string>& columns) {
  const auto& [of_text, of_labels, between] = columns;
  require(between.size() <= 1, ErrorKind::bad_argument, kOp, "label_separator is \"", between,
          "\"; give one ASCII character, or \"\" where a field is one label");
  return {.between_labels = between.empty() ? '\0' : between[0],
          .text_column = of_text,
          .label_column = of_labels};
}

/// Rows of a corpus as Python gives them: files, texts, labels.
using Rows = std::tuple<std::vector<std::string>, std::vector<std::string>, Labels>;

/// Ends with the model in `out`; returns metrics.json.
std::string train(const Rows& rows, const Rows& dev_rows, const std::string& out, const Options& options,
                  const std::tuple<std::string, std::string, std::string>& columns,
                  const std::tuple<int, bool>& how) {
  TrainWords words;
  for (const auto& [name, value] : options) say(words, name, value);
  take_recipes(words);
  require(words.dtype == "f32" || words.dtype == "bf16", ErrorKind::bad_dtype, "train", "dtype is ",
          words.dtype, "; give f32 or bf16");
  if (words.dtype == "bf16")
    words.training.compute = DType::bf16;
  else
    words.training.compute = DType::f32;
  const auto [threads, quiet] = how;
  words.training.out = quiet ? nullptr : &std::cout;
  const Flight free;
  const CorpusOptions reading = columns_of(columns);
  Corpus train = corpus_of(std::get<0>(rows), std::get<1>(rows), std::get<2>(rows), reading);
  Corpus dev = corpus_of(std::get<0>(dev_rows), std::get<1>(dev_rows), std::get<2>(dev_rows), reading);
  if (dev.rows.empty()) dev = hold_out(train, words.training.held_out, words.training.seed);
  std::optional<Pretrained> pretrained;
  if (!words.from.empty()) pretrained.emplace(read_pretrained(words.from));
  const RecognizerConfig config = config_of(words, pretrained ? &*pretrained : nullptr);
  add_strangers(train, dev, words.compound == "auto" || config.cuts.on, words.training);
  const Start start =
      pretrained ? from_encoder(config, pretrained->vocabulary, pretrained->encoder, train, words.training)
                 : from_scratch(config, train, words.training);
  Session session({.threads = threads});
  const TrainedRecognizer made =
      words.compound == "auto" ? train_forms(words, pretrained ? &*pretrained : nullptr, train, dev, session)
                               : train_recognizer(start, train, dev, words.training, session);
  if (made.ending == Ending::interrupted) return "";
  const FolderFile files[] = {{"metrics.json", made.metrics}, {"card.md", made.card}};
  made.model.save(out, files);
  return made.metrics;
}

std::vector<std::string> predict(RecognizerBox& box, const std::vector<std::string>& texts, Index top,
                                 bool explain, const std::string& label) {
  const Turn turn(box.turn);
  const Flight free;
  const std::vector<Prediction> all = box.model.predict(texts, box.session);
  std::vector<std::string> answers;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::vector<Explanation> why;
    if (explain) why = explain_labels(box.model, texts[i], all[i], label, box.session);
    answers.push_back(answer_json(box.model.config(), texts[i], all[i], top, why));
  }
  return answers;
}

std::string evaluated(RecognizerBox& box, const Rows& rows,
                      const std::tuple<std::string, std::string, std::string>& columns,
                      const std::string& out_of_scope) {
  const Turn turn(box.turn);
  const Flight free;
  const Corpus corpus =
      corpus_of(std::get<0>(rows), std::get<1>(rows), std::get<2>(rows), columns_of(columns));
  return evaluate(box.model, corpus, box.session, {.out_of_scope = out_of_scope}).json();
}

void write_report(RecognizerBox& box, const Rows& rows, const std::string& out,
                  const std::tuple<std::string, std::string, std::string>& columns,
                  const std::tuple<Index, bool, std::string>& how) {
  const Turn turn(box.turn);
  const Flight free;
  ReportOptions options;
  std::tie(options.mistakes, options.redact, options.language) = how;
  const Corpus corpus =
      corpus_of(std::get<0>(rows), std::get<1>(rows), std::get<2>(rows), columns_of(columns));
  options.data = corpus.name;
  const Report made = make_report(box.model, corpus, RoleBook::builtin(), box.session, options);
  Replacement file(out, "report");
  file.file().write(made.page);
  file.commit();
}

}  // namespace

void bind_recognizer(nb::module_& m) {
  m.def("recognizer_train", &train);
  nb::class_<RecognizerBox>(m, "RecognizerCore")
      .def(
          "__init__",
          [](RecognizerBox* self, const std::string& folder, int threads, const std::string& device) {
            new (self) RecognizerBox(folder, threads, device);
          },
          nb::arg("folder"), nb::arg("threads"), nb::arg("device"))
      .def("predict", &predict)
      .def("evaluate", &evaluated)
      .def("report", &write_report)
      .def_prop_ro("device", [](const RecognizerBox& box) { return words_of(box.model.device()); })
      .def_prop_ro("labels", [](const RecognizerBox& box) { return box.model.config().labels; })
      .def_prop_ro("thresholds", [](const RecognizerBox& box) {
        const RecognizerConfig& c = box.model.config();
        return std::tuple(c.multi_label, c.threshold, c.out_of_scope);
      });
}

}  // namespace headwise::python
