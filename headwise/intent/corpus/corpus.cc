#include "headwise/intent/corpus/corpus.h"

#include <algorithm>
#include <functional>
#include <span>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/intent/corpus/csv.h"
#include "headwise/intent/corpus/workbook.h"
#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr Index kFieldBytes = Index{64} << 20;  // one text or label of a JSON file

template <class... Parts>
[[noreturn]] void refuse(std::string_view name, const Parts&... parts) {
  throw Error(ErrorKind::bad_argument, text("corpus: ", name, ": ", parts...));
}

/// Ends of lines too: a field of a CSV file may hold them.
std::string_view bare(std::string_view s) { return trimmed(s, " \t\r\n"); }
bool is_blank(std::string_view s) { return bare(s).empty(); }
bool is_zip(std::string_view bytes) { return bytes.starts_with("PK\x03\x04"); }

void add_label(Utterance& row, std::string_view label) {
  const std::string_view plain = bare(label);
  if (!plain.empty() && std::find(row.labels.begin(), row.labels.end(), plain) == row.labels.end())
    row.labels.emplace_back(plain);
}

void add_labels(Utterance& row, std::string_view field, char between) {
  for (;;) {
    const std::size_t at = between ? field.find(between) : std::string_view::npos;
    add_label(row, field.substr(0, at));
    if (at == std::string_view::npos) return;
    field.remove_prefix(at + 1);
  }
}

void add_row(Corpus& corpus, Utterance row) {
  if (is_blank(row.text)) refuse(corpus.name, "line ", row.line, " has an empty text; fill or remove it");
  corpus.rows.push_back(std::move(row));
}

/// Calls f(line, number) for every line that is not blank.
void for_each_line(std::string_view all, const std::function<void(std::string_view, Index)>& f) {
  Index number = 1;
  for (std::size_t at = 0; at < all.size(); ++number) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    std::string_view line = all.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!is_blank(line)) f(line, number);
    at = end + 1;
  }
}

/// Names of columns that need not be said, in lower case.
constexpr std::string_view kTextColumns[] = {"text",     "utterance", "sentence", "query", "message",
                                             "question", "文本",      "句子",     "问题",  "内容"};
constexpr std::string_view kLabelColumns[] = {"labels", "label", "intents", "intent", "category",
                                              "class",  "标签",  "意图",    "类别"};

/// -1: the header has none of them.
Index find_column(const CsvRow& header, const std::string& wanted, std::span<const std::string_view> usual) {
  std::vector<std::string> names;
  for (const std::string_view u : usual) names.emplace_back(u);
  if (!wanted.empty()) names = {lowered(wanted)};
  for (const std::string& u : names)
    for (std::size_t i = 0; i < header.fields.size(); ++i)
      if (lowered(bare(header.fields[i])) == u) return static_cast<Index>(i);
  return -1;
}

std::size_t column(const CsvRow& header, const std::string& wanted, std::span<const std::string_view> usual,
                   std::string_view what, std::string_view name) {
  const Index found = find_column(header, wanted, usual);
  if (found >= 0) return static_cast<std::size_t>(found);
  std::string got;
  for (const std::string& f : header.fields) got += (got.empty() ? "" : ", ") + quoted(f);
  refuse(name, "its header has no ", what, " column ",
         quoted(wanted.empty() ? std::string(usual[0]) : wanted), "; it has ", got, "; name one: --", what,
         "-column");
}

CsvRow fields_of(std::string_view line) {
  CsvRow row;
  for (;;) {
    const std::size_t end = line.find('\t');
    row.fields.emplace_back(line.substr(0, end));
    if (end == std::string_view::npos) return row;
    line.remove_prefix(end + 1);
  }
}

/// A first line that names a text and a label column, or one whose columns are asked for, is a header.
void parse_tsv(std::string_view all, const CorpusOptions& options, Corpus& corpus) {
  std::size_t text_at = 0, label_at = 1;
  bool first = true;
  const bool named = !options.text_column.empty() || !options.label_column.empty();
  for_each_line(all, [&](std::string_view line, Index number) {
    const CsvRow fields = fields_of(line);
    if (fields.fields.size() < 2)
      refuse(corpus.name, "line ", number, " has no tab; a line is text<TAB>label", options.between_labels,
             "label");
    const bool header = first && (named || (find_column(fields, {}, kTextColumns) >= 0 &&
                                            find_column(fields, {}, kLabelColumns) >= 0));
    first = false;
    if (header) {
      text_at = column(fields, options.text_column, kTextColumns, "text", corpus.name);
      label_at = column(fields, options.label_column, kLabelColumns, "label", corpus.name);
      return;
    }
    if (fields.fields.size() <= std::max(text_at, label_at))
      refuse(corpus.name, "line ", number, " has ", fields.fields.size(),
             " columns; the header has its text and label in columns ", text_at + 1, " and ", label_at + 1);
    Utterance row{fields.fields[text_at], {}, {}, number};
    add_labels(row, fields.fields[label_at], options.between_labels);
    for (std::size_t i = 0; i < fields.fields.size(); ++i)
      if (i != text_at && i != label_at) row.extra.push_back(fields.fields[i]);
    add_row(corpus, std::move(row));
  });
}

void parse_csv(std::string_view all, const CorpusOptions& options, Corpus& corpus) {
  const char between = csv_separator(all);
  CsvReader reader(all, "corpus: " + corpus.name, between);
  CsvRow row;
  if (!reader.next(row)) return;
  const std::size_t text_at = column(row, options.text_column, kTextColumns, "text", corpus.name);
  const std::size_t label_at = column(row, options.label_column, kLabelColumns, "label", corpus.name);
  const std::size_t columns = row.fields.size();
  while (reader.next(row)) {
    if (row.fields.size() != columns)
      refuse(corpus.name, "line ", row.line, " has ", row.fields.size(), " fields, the header ", columns,
             "; put fields that hold a ", between == ',' ? "comma" : "separator", " in quotes");
    Utterance u{std::move(row.fields[text_at]), {}, {}, row.line};
    add_labels(u, row.fields[label_at], options.between_labels);
    add_row(corpus, std::move(u));
  }
}

/// The first sheet, whose first row is its header. A formula is refused: its value is the program's that
/// saved it.
void parse_workbook(std::string_view all, const CorpusOptions& options, Corpus& corpus) {
  Sheet sheet = read_workbook(all, options.file_bytes, corpus.name);
  if (sheet.rows.empty()) return;
  const CsvRow& header = sheet.rows[0];
  const std::size_t text_at = column(header, options.text_column, kTextColumns, "text", corpus.name);
  const std::size_t label_at = column(header, options.label_column, kLabelColumns, "label", corpus.name);
  for (std::size_t i = 1; i < sheet.rows.size(); ++i) {
    CsvRow& row = sheet.rows[i];
    for (const std::size_t at : {text_at, label_at})
      if (const auto it = sheet.computed.find({row.line, at}); it != sheet.computed.end())
        refuse(corpus.name, "row ", row.line, ", column ", column_letters(at), " (cell ", column_letters(at),
               row.line, ") holds ", it->second, "; paste the column's values in its place");
    row.fields.resize(std::max(row.fields.size(), std::max(text_at, label_at) + 1));
    Utterance u{std::move(row.fields[text_at]), {}, {}, row.line};
    if (is_blank(u.text))
      refuse(corpus.name, "row ", row.line, " has an empty text in column ", column_letters(text_at),
             "; fill or remove it");
    add_labels(u, row.fields[label_at], options.between_labels);
    add_row(corpus, std::move(u));
  }
}

/// One object; its other members are skipped.
Utterance parse_object(JsonReader& json, Index line, bool needs_labels) {
  Utterance row;
  row.line = line;
  bool has_text = false, has_labels = false;
  json.take('{', "an utterance");
  for (bool first = true; !json.try_take('}'); first = false) {
    if (!first) json.take(',', "an utterance");
    const std::string key = json.string("a key", kFieldBytes);
    json.take(':', "a key");
    if (key == "text") {
      if (has_text) json.refuse("\"text\" stands twice in an utterance");
      row.text = json.string("text", kFieldBytes);
      has_text = true;
    } else if (key == "label" || key == "labels" || key == "intent" || key == "intents" ||
               key == "category") {
      has_labels = true;
      if (json.peek() != '[') {
        add_label(row, json.string("a label", kFieldBytes));
        continue;
      }
      json.take('[', "labels");
      for (bool one = true; !json.try_take(']'); one = false) {
        if (!one) json.take(',', "labels");
        add_label(row, json.string("a label", kFieldBytes));
      }
    } else {
      json.skip("a member");
    }
  }
  if (!has_text) json.refuse("an utterance has no \"text\"");
  if (needs_labels && !has_labels)
    json.refuse("an utterance has no \"labels\"; give an empty list when it has none");
  return row;
}

void parse_json_lines(std::string_view all, Corpus& corpus) {
  for_each_line(all, [&](std::string_view line, Index number) {
    JsonReader json(line, text("corpus: ", corpus.name, ": line ", number));
    Utterance row = parse_object(json, number, true);
    if (json.peek()) json.refuse("something stands after the utterance");
    add_row(corpus, std::move(row));
  });
}

void parse_json_list(std::string_view all, Corpus& corpus) {
  JsonReader json(all, "corpus: " + corpus.name);
  json.take('[', "a list of utterances");
  std::size_t counted = 0;
  Index line = 1;
  for (bool first = true; !json.try_take(']'); first = false) {
    if (!first) json.take(',', "a list of utterances");
    json.peek();
    line += std::count(all.begin() + static_cast<std::ptrdiff_t>(counted),
                       all.begin() + static_cast<std::ptrdiff_t>(json.at()), '\n');
    counted = json.at();
    add_row(corpus, parse_object(json, line, false));
  }
  if (json.peek()) json.refuse("something stands after the list");
}

CorpusFormat format_of(std::string_view name) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (name.ends_with(".tsv") || name.ends_with(".txt")) return CorpusFormat::tsv;
  if (name.ends_with(".csv")) return CorpusFormat::csv;
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return CorpusFormat::json_lines;
  if (name.ends_with(".json")) return CorpusFormat::json_list;
  refuse(
      name,
      "its name does not say what it is; end it in .tsv, .csv, .xlsx, .jsonl or .json, or name the format");
}

void check_encoding(std::string_view all, std::string_view name) {
  const bool old_workbook = all.starts_with("\xd0\xcf\x11\xe0");
  if (is_zip(all) || old_workbook || name.ends_with(".xlsx") || name.ends_with(".xls"))
    refuse(name,
           "is no .xlsx workbook but an older, locked or other one; save it as .xlsx without a password, ",
           "or the sheet as \"CSV UTF-8\"");
  if (all.starts_with("\xff\xfe") || all.starts_with("\xfe\xff"))
    refuse(name, "is UTF-16; convert it to UTF-8: iconv -f utf-16 -t utf-8");
  const Index bad = first_bad_utf8(all);
  if (bad < 0) return;
  const Index line = 1 + std::count(all.begin(), all.begin() + bad, '\n');
  refuse(name, "line ", line, " is no UTF-8 text (byte ", bad,
         " of the file); convert it, such as with iconv");
}

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

Corpus parse_corpus(std::string_view bytes, std::string_view name, const CorpusOptions& options) {
  std::string unpacked;
  if (is_gzip(bytes)) {
    unpacked = unpack_gzip(bytes, options.file_bytes, name);
    bytes = unpacked;
  }
  Corpus corpus;
  corpus.name = name;
  if (is_zip(bytes) && !name.ends_with(".ods")) {
    parse_workbook(bytes, options, corpus);
  } else {
    check_encoding(bytes, name);
    if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
    switch (options.format == CorpusFormat::by_name ? format_of(name) : options.format) {
      case CorpusFormat::csv: parse_csv(bytes, options, corpus); break;
      case CorpusFormat::json_lines: parse_json_lines(bytes, corpus); break;
      case CorpusFormat::json_list: parse_json_list(bytes, corpus); break;
      default: parse_tsv(bytes, options, corpus); break;
    }
  }
  if (corpus.rows.empty()) refuse(name, "holds no utterance; give one a line");
  return corpus;
}

Corpus read_corpus(const std::string& path, const CorpusOptions& options) {
  return parse_corpus(read_text(path, options.file_bytes, "corpus"), path, options);
}

Corpus read_corpora(const std::vector<std::string>& paths, const CorpusOptions& options) {
  require(!paths.empty(), ErrorKind::bad_argument, "corpus", "got no file; name at least one");
  Corpus all;
  for (const std::string& path : paths) {
    Corpus one = read_corpus(path, options);
    all.name += (all.name.empty() ? "" : ", ") + path;
    std::move(one.rows.begin(), one.rows.end(), std::back_inserter(all.rows));
  }
  return all;
}

}  // namespace headwise
