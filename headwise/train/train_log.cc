#include "headwise/train/train_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "headwise/base/error.h"
#include "headwise/model/file.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "training log";
constexpr std::string_view kHead = "step,loss,rate,norm,examples,seconds,judged\n";

/// The shortest digits that give the same number back; JSON has no NaN.
std::string number(double x, bool json) {
  if (!std::isfinite(x)) return json ? "null" : std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
  char buffer[40];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr);
}

/// The step a row begins with; -1: no row.
Index step_of(std::string_view line, bool json) {
  constexpr std::string_view kFront = "{\"step\":";
  if (json) {
    if (!line.starts_with(kFront)) return -1;
    line.remove_prefix(kFront.size());
  }
  Index step = -1;
  return std::from_chars(line.data(), line.data() + line.size(), step).ec == std::errc() ? step : -1;
}

}  // namespace

TrainLog::TrainLog(std::string path, Index first) : path_(std::move(path)) {
  if (path_.empty()) return;
  json_ = path_.ends_with(".jsonl");
  require(json_ || path_.ends_with(".csv"), ErrorKind::bad_argument, kOp, path_,
          ": end its name in .csv or .jsonl");
  std::string kept = json_ ? "" : std::string(kHead);
  if (first > 0 && std::filesystem::exists(path_)) {
    const std::string old = read_text(path_, Index{1} << 32, kOp);
    for (std::size_t at = 0; at < old.size();) {
      const std::size_t end = old.find('\n', at);
      if (end == std::string::npos) break;  // a row a crash cut short
      const std::string_view line = std::string_view(old).substr(at, end + 1 - at);
      const Index step = step_of(line, json_);
      if (step >= 0 && step <= first) kept += line;
      at = end + 1;
    }
  }
  Replacement file(path_, kOp);
  file.file().write(kept);
  file.commit();
}

void TrainLog::write(const LogRow& row) {
  if (path_.empty()) return;
  std::string line;
  const auto n = [&](double x) { return number(x, json_); };
  if (json_) {
    line = text("{\"step\":", row.step, ",\"loss\":", n(row.loss), ",\"rate\":", n(row.rate),
                ",\"norm\":", n(row.norm), ",\"examples\":", row.examples, ",\"seconds\":", n(row.seconds));
    if (row.judged) line += text(",\"judged\":", n(*row.judged));
    line += "}\n";
  } else {
    line = text(row.step, ',', n(row.loss), ',', n(row.rate), ',', n(row.norm), ',', row.examples, ',',
                n(row.seconds), ',', row.judged ? n(*row.judged) : "", '\n');
  }
  // Opened for each row: whole rows reach the file in one call, whatever happens to the process.
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) file_failed(kOp, path_, "open", errno);
  const ssize_t wrote = ::write(fd, line.data(), line.size());
  const int code = wrote < 0 ? errno : wrote < static_cast<ssize_t>(line.size()) ? ENOSPC : 0;
  ::close(fd);
  if (code) file_failed(kOp, path_, "write", code);
}

}  // namespace headwise
