#include "headwise/cli/intent/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr const char* kOp = "train";

std::string lock_path(const std::string& out) {
  const fs::path path(out);
  return (path.parent_path() / text('.', path.filename().string(), ".lock")).string();
}

std::string settings_in(const std::string& folder) {
  const std::string path = folder + "/" + RunFolder::kSettings;
  return fs::exists(path) ? read_text(path, Index{1} << 20, kOp) : "";
}

/// The words the run in this folder was begun with; "": there is none. A folder of anything else is refused,
/// because a run's folder is deleted when it is done.
std::string words_of(const std::string& run) {
  if (!fs::exists(run)) return "";
  std::string words;
  if (fs::is_directory(run)) {
    try {
      words = settings_in(run);
    } catch (const Error&) {
      // Unreadable is as none.
    }
    const Json json = Json::parse(words, nullptr, false);
    if (json.is_object() && json.contains("model_dim")) return words;
  }
  bool empty = fs::is_directory(run);
  for (const auto& file : empty ? fs::directory_iterator(run) : fs::directory_iterator())
    empty = empty && file.path().filename().string().find(RunFolder::kSettings) != std::string::npos;
  require(empty, ErrorKind::bad_argument, kOp, run,
          " is there and holds no run of headwise; give another --out or move it away");
  return "";
}

}  // namespace

TrainingLock::TrainingLock(const std::string& out) : path_(lock_path(out)) {
  std::error_code code;
  if (const fs::path parent = fs::path(path_).parent_path(); !parent.empty())
    fs::create_directories(parent, code);
  for (;;) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) file_failed(kOp, path_, "make this lock", errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int fault = errno;
      ::close(fd_);
      require(fault == EWOULDBLOCK, ErrorKind::bad_argument, kOp, path_,
              ": cannot be locked; choose a place ", "on another file system");
      throw Error(
          ErrorKind::bad_argument,
          text(kOp, ": ", out, " is being trained by another process; wait for it or give another --out"));
    }
    // Whoever held it before deletes the name at its end: a lock on a file without a name locks nothing.
    struct stat named {
    }, ours{};
    if (::fstat(fd_, &ours) == 0 && ::stat(path_.c_str(), &named) == 0 && named.st_ino == ours.st_ino) return;
    ::close(fd_);
  }
}

TrainingLock::~TrainingLock() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

RunFolder::RunFolder(std::string out, std::string settings, bool replace)
    : out_(std::move(out)), run_(out_ + ".run"), settings_(std::move(settings)), replace_(replace) {}

RunFolder::Fit RunFolder::fit_of(const std::string& theirs) const {
  if (theirs.empty()) return Fit::none;
  if (theirs == settings_) return Fit::same;
  Json them = Json::parse(theirs, nullptr, false), us = Json::parse(settings_);
  if (!them.is_object()) return Fit::other_words;
  const bool told = them.contains("crc32c");  // older ones know nothing of their data
  them.erase("crc32c"), us.erase("crc32c");
  return them != us ? Fit::other_words : told ? Fit::other_data : Fit::same;
}

bool RunFolder::is_done() const {
  const Fit begun = fit_of(words_of(run_));
  remove_left(out_), remove_left(run_), remove_left(run_ + "/best");
  require(!fs::exists(out_) || fs::is_empty(out_) || fs::exists(out_ + "/config.json"),
          ErrorKind::bad_argument, kOp, out_,
          " is there and is no model folder; choose another name or move it away");
  if (replace_) return false;
  if (fs::exists(out_ + "/config.json")) {
    const Fit made = fit_of(settings_in(out_));
    require(
        made != Fit::other_data, ErrorKind::bad_argument, kOp, out_,
        " was trained with these words, but on other data; give --replace to train on the data as it is now, "
        "or another --out");
    require(made == Fit::same, ErrorKind::bad_argument, kOp, out_,
            " is a model trained with other words; give another --out, or --replace to train in its place");
    return true;
  }
  require(begun != Fit::other_data, ErrorKind::bad_argument, kOp, run_,
          " holds a run begun on other data; give --replace to begin anew, or another --out");
  require(begun != Fit::other_words, ErrorKind::bad_argument, kOp, run_,
          " holds a run begun with other words; give those again to go on, another --out, or --replace to "
          "begin anew");
  return false;
}

void RunFolder::begin() const {
  if (fit_of(words_of(run_)) == Fit::same) return;
  remove_folder(run_, kOp);
  std::error_code code;
  fs::create_directories(run_, code);
  if (code) file_failed(kOp, run_, "make this folder", code.value());
  Replacement words(run_ + "/" + kSettings, kOp);
  words.file().write(settings_);
  words.commit();
}

void RunFolder::end_without_steps() const {
  std::error_code code;
  for (const auto& file : fs::directory_iterator(run_, code))
    if (file.path().filename().string().starts_with("step-")) return;
  try {
    remove_folder(run_, kOp);
  } catch (const Error&) {
    // What went wrong before is told.
  }
}

void RunFolder::end() const { remove_folder(run_, kOp); }

}  // namespace headwise::cli
