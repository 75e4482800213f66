#include "headwise/lab/during/epoch_survey.h"

#include <filesystem>

#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/file.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "survey history";
constexpr const char *kCsv = "during.csv", *kCopy = "/surveyed";
constexpr Index kMostBytes = Index{1} << 30;

}  // namespace

EpochSurvey::EpochSurvey(std::string folder, std::vector<std::string> texts, SurveyNames names, int threads)
    : folder_(std::move(folder)), texts_(std::move(texts)), names_(std::move(names)), threads_(threads) {
  const std::string csv = folder_ + "/" + kCsv;
  if (fs::exists(csv)) history_ = SurveyHistory(read_text(csv, kMostBytes, kOp), csv);
}

std::vector<FolderFile> EpochSurvey::files() const {
  if (history_.moments().empty()) return {};
  return {{kCsv, history_.csv()},
          {"during.json", history_.json()},
          {"during.html", history_.page(names_.model, names_.texts)}};
}

void EpochSurvey::look(Index epoch, const Recognizer& model) {
  const std::string copy = folder_ + kCopy;
  model.save(copy);
  history_.add(epoch, survey_model(copy, texts_, threads_, {.flow = 0, .collapse = 0, .gradients = 0}));
  fs::remove_all(copy);
  for (const FolderFile& file : files()) {
    const std::string part = folder_ + "/" + file.name + ".part";
    write_file(part, file.content, kOp);
    fs::rename(part, folder_ + "/" + file.name);
  }
}

}  // namespace headwise
