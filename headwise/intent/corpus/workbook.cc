#include "headwise/intent/corpus/workbook.h"

#include <algorithm>
#include <charconv>

#include "headwise/base/error.h"
#include "headwise/intent/corpus/xml.h"
#include "headwise/intent/corpus/zip.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

using Kind = XmlReader::Kind;
constexpr std::size_t kColumns = 16384;  // of a sheet, as Excel has them
/// With the empty ones: a short file may name the last column alone in every row.
constexpr std::size_t kCells = std::size_t{1} << 23;

/// A number of the file; -1 where it is none.
Index whole(std::string_view digits) {
  Index n = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return error == std::errc() && end == digits.data() + digits.size() ? n : -1;
}

/// "B7" is column 1; `fallback` where no letters stand there.
std::size_t column_of(std::string_view cell, std::size_t fallback) {
  std::size_t n = 0;
  for (const char c : cell) {
    if (c < 'A' || c > 'Z' || n > kColumns) break;
    n = n * 26 + static_cast<std::size_t>(c - 'A') + 1;
  }
  return n == 0 ? fallback : n - 1;
}

/// Office writes characters that XML does not take as _x000D_.
std::string without_escapes(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text.compare(i, 2, "_x") == 0 && i + 7 <= text.size() && text[i + 6] == '_') {
      const char* digits = text.data() + i + 2;
      const auto [end, error] = std::from_chars(digits, digits + 4, value, 16);
      if (error == std::errc() && end == digits + 4 && value < 0x80) {
        out += static_cast<char>(value);
        i += 6;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

/// The texts inside an element that was just opened, up to its end; pronunciations are left out.
std::string inner_text(XmlReader& xml, std::string_view element) {
  std::string out;
  int beside = 0;
  for (Kind k = xml.next(); k != Kind::end; k = xml.next()) {
    if (k == Kind::text && beside == 0) out += xml.text();
    if (k == Kind::text) continue;
    if (xml.name() == "rPh") beside += k == Kind::open ? 1 : -1;
    if (k == Kind::close && xml.name() == element) break;
  }
  return without_escapes(out);
}

class WorkbookReader {
 public:
  WorkbookReader(std::string_view bytes, Index most, std::string_view name)
      : zip_(bytes, std::string(name)), most_(most), name_(name) {}

  Sheet read() {
    find_parts();
    if (!strings_at_.empty()) read_strings(member(strings_at_));
    read_sheet(member(sheet_at_));
    return std::move(sheet_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument, text("corpus: ", name_, ": ", parts...));
  }
  std::string member(const std::string& path) const {
    std::optional<std::string> out = zip_.member(path, most_);
    if (!out)
      refuse("is a zip file without ", quoted(path),
             ", so no .xlsx workbook; save the sheet as \"CSV UTF-8\"");
    if (first_bad_utf8(*out) >= 0)
      refuse("holds ", quoted(path), ", which is no UTF-8; save it again as .xlsx");
    return std::move(*out);
  }

  /// Where the first sheet and the shared texts lie: names in workbook.xml, paths in its relations.
  void find_parts() {
    const std::string book = member("xl/workbook.xml"), relations = member("xl/_rels/workbook.xml.rels");
    std::string first;
    XmlReader sheets(book);
    for (Kind k = sheets.next(); k != Kind::end && first.empty(); k = sheets.next())
      if (k == Kind::open && sheets.name() == "sheet") first = sheets.attribute("id");
    if (first.empty()) refuse("is a workbook without a sheet");
    XmlReader xml(relations);
    for (Kind k = xml.next(); k != Kind::end; k = xml.next()) {
      if (k != Kind::open || xml.name() != "Relationship") continue;
      const std::string target = xml.attribute("Target");
      const std::string path = target.starts_with('/') ? target.substr(1) : "xl/" + target;
      if (xml.attribute("Id") == first) sheet_at_ = path;
      if (xml.attribute("Type").ends_with("/sharedStrings")) strings_at_ = path;
    }
    if (sheet_at_.empty()) refuse("is a workbook whose first sheet is nowhere; save it again");
  }

  void read_strings(const std::string& document) {
    XmlReader xml(document);
    for (Kind k = xml.next(); k != Kind::end; k = xml.next())
      if (k == Kind::open && xml.name() == "si") strings_.push_back(inner_text(xml, "si"));
  }

  void read_sheet(const std::string& document) {
    XmlReader xml(document);
    for (Kind k = xml.next(); k != Kind::end; k = xml.next()) {
      if (k == Kind::close && xml.name() == "row") end_row();
      if (k != Kind::open) continue;
      if (xml.name() == "row") {
        const Index number = whole(xml.attribute("r"));
        row_.line = number > 0 ? number : row_.line + 1;
      }
      if (xml.name() == "c") read_cell(xml);
    }
  }

  void end_row() {
    const auto filled = [](const std::string& f) {
      return f.find_first_not_of(" \t\r\n") != std::string::npos;
    };
    if (std::any_of(row_.fields.begin(), row_.fields.end(), filled) || computed_here_) {
      cells_ += row_.fields.size();
      if (cells_ > kCells)
        refuse("row ", row_.line, " is beyond the ", kCells,
               " cells read of a sheet; keep its text and label alone");
      sheet_.rows.push_back(row_);
    }
    row_.fields.clear();
    computed_here_ = false;
  }

  void read_cell(XmlReader& xml) {
    const std::size_t column = column_of(xml.attribute("r"), row_.fields.size());
    const std::string type = xml.attribute("t");
    if (column >= kColumns) refuse("row ", row_.line, " has a cell beyond the last column of a sheet");
    if (row_.fields.size() <= column) row_.fields.resize(column + 1);
    std::string value, computed;
    for (Kind k = xml.next(); k != Kind::end && !(k == Kind::close && xml.name() == "c"); k = xml.next()) {
      if (k != Kind::open) continue;
      if (xml.name() == "f") computed = "a formula";
      if (xml.name() == "v") value = inner_text(xml, "v");
      if (xml.name() == "is") value = inner_text(xml, "is");
    }
    if (type == "e") computed = "the error " + value;
    if (type == "b") value = value == "1" ? "TRUE" : "FALSE";
    if (type == "s" && !value.empty()) {
      const Index at = whole(value);
      if (at < 0 || at >= std::ssize(strings_))
        refuse("cell ", column_letters(column), row_.line, " names shared text ", value, " of ",
               strings_.size(), "; save the workbook again");
      value = strings_[static_cast<std::size_t>(at)];
    }
    row_.fields[column] = std::move(value);
    if (computed.empty()) return;
    sheet_.computed[{row_.line, column}] = std::move(computed);
    computed_here_ = true;
  }

  ZipFile zip_;
  Index most_;
  std::string name_, sheet_at_, strings_at_;
  std::vector<std::string> strings_;
  CsvRow row_;
  std::size_t cells_ = 0;
  bool computed_here_ = false;
  Sheet sheet_;
};

}  // namespace

std::string column_letters(std::size_t column) {
  std::string out;
  for (std::size_t n = column + 1; n > 0; n = (n - 1) / 26)
    out.insert(out.begin(), static_cast<char>('A' + (n - 1) % 26));
  return out;
}

Sheet read_workbook(std::string_view bytes, Index most, std::string_view name) {
  return WorkbookReader(bytes, most, name).read();
}

}  // namespace headwise
