#include "headwise/intent/corpus/csv.h"

#include <algorithm>

#include "headwise/base/error.h"

namespace headwise {

std::string CsvReader::quoted_field() {
  const Index opened = line_;
  std::string out;
  for (++at_;; ++at_) {
    require(at_ < text_.size(), ErrorKind::bad_argument, where_, "the quote opened in line ", opened,
            " is never closed; close it, or double a quote that is meant");
    const char c = text_[at_];
    if (c == '"') {
      if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
      ++at_;
    }
    line_ += c == '\n';
    out += c;
  }
  ++at_;
  require(at_ >= text_.size() || text_[at_] == between_ || text_[at_] == '\n' || text_[at_] == '\r',
          ErrorKind::bad_argument, where_, "line ", line_, " goes on after a closing quote; put a ",
          between_ == ',' ? "comma" : "separator", " there, or double a quote that is meant");
  return out;
}

char csv_separator(std::string_view text) {
  bool inside = false;
  char found = 0;
  for (const char c : text) {
    if (c == '"') inside = !inside;
    if (inside) continue;
    if (c == ',') return c;
    if ((c == ';' || c == '\t') && !found) found = c;
    if (c == '\n') break;
  }
  return found ? found : ',';
}

bool CsvReader::next(CsvRow& row) {
  const char ends[] = {between_, '\n', 0};
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) line_ += text_[at_++] == '\n';
  if (at_ >= text_.size()) return false;
  row.fields.clear();
  row.line = line_;
  for (;;) {
    if (at_ < text_.size() && text_[at_] == '"') {
      row.fields.push_back(quoted_field());
    } else {
      const std::size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
      std::string_view field = text_.substr(at_, end - at_);
      if (end < text_.size() && text_[end] == '\n' && field.ends_with('\r')) field.remove_suffix(1);
      row.fields.emplace_back(field);
      at_ = end;
    }
    if (at_ < text_.size() && text_[at_] == between_) {
      ++at_;
      continue;
    }
    while (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') ++at_, ++line_;
    return true;
  }
}

}  // namespace headwise
