#include "headwise/model/json_object.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr Index kMostKeyBytes = 1024;

/// A whole number as JSON has them: 7, 7.0 and 7e0 are one.
std::optional<Index> whole_number(std::string_view word) {
  const char* const last = word.data() + word.size();
  Index x = 0;
  auto [end, error] = std::from_chars(word.data(), last, x);
  if (end != last && *end == '.' && last[-1] != '.')
    end = std::find_if(end + 1, last, [](char c) { return c != '0'; });
  if (error == std::errc() && end == last) return x;
  double y = 0;
  const auto [after, fault] = std::from_chars(word.data(), last, y);
  const bool fits = std::abs(y) < 0x1p63 && y == std::floor(y) && word.find_first_of("eE") != word.npos;
  return fault == std::errc() && after == last && fits ? std::optional(static_cast<Index>(y)) : std::nullopt;
}

}  // namespace

JsonObject::JsonObject(std::string_view json, std::string_view where) : where_(where) {
  const Index bad = first_bad_utf8(json);
  if (bad >= 0) [[unlikely]]
    throw Error(ErrorKind::bad_argument, text(where_, ": byte ", bad, " is no UTF-8 text"));
  JsonReader reader(json, where);
  std::unordered_set<std::string> seen;
  reader.take('{', "a settings file");
  for (bool more = !reader.try_take('}'); more;) {
    std::string key = reader.string("a key", kMostKeyBytes);
    reader.take(':', "a key");
    if (!seen.insert(key).second) reader.refuse(quoted(key), " stands there twice");
    reader.peek();
    const std::size_t begin = reader.at();
    reader.about(key);
    reader.skip("its value");
    reader.about({});
    fields_.push_back({std::move(key), std::string(json.substr(begin, reader.at() - begin))});
    more = reader.try_take(',');
    if (!more) reader.take('}', "a settings file");
  }
  if (reader.peek() != '\0' || reader.at() != json.size())
    reader.refuse("something stands after the closing '}'");
}

JsonObject JsonObject::read(const std::string& path, std::string_view op, Index most) {
  return JsonObject(read_text(path, most, op), text(op, ": ", path));
}

const std::string* JsonObject::find(std::string_view key) const {
  for (const Field& f : fields_)
    if (f.key == key) return f.value == "null" ? nullptr : &f.value;
  return nullptr;
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> all;
  for (const Field& f : fields_) all.push_back(f.key);
  return all;
}

std::string JsonObject::shown(std::string_view key) const {
  constexpr std::size_t kMost = 80;
  const std::string* value = find(key);
  if (!value) return "absent";
  std::size_t end = std::min(value->size(), kMost);
  while (end < value->size() && (static_cast<unsigned char>((*value)[end]) & 0xc0u) == 0x80u) --end;
  std::string out = value->substr(0, end);
  std::replace(out.begin(), out.end(), '\n', ' ');
  return end < value->size() ? out + "..." : out;
}

const std::string* JsonObject::need(std::string_view key, bool otherwise) const {
  const std::string* value = find(key);
  if (!value && !otherwise) [[unlikely]]
    throw Error(ErrorKind::bad_argument, text(where_, ": has no \"", key, "\"; the file needs it"));
  return value;
}

Index JsonObject::integer(std::string_view key, Index low, Index high, std::optional<Index> otherwise) const {
  const std::string* value = need(key, otherwise.has_value());
  if (!value) return *otherwise;
  const std::optional<Index> x = whole_number(*value);
  if (!x || *x < low || *x > high) refuse(key, "a whole number from ", low, " to ", high, " is needed");
  return *x;
}

double JsonObject::number(std::string_view key, double low, double high,
                          std::optional<double> otherwise) const {
  const std::string* value = need(key, otherwise.has_value());
  if (!value) return *otherwise;
  double x = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), x);
  if (error != std::errc() || end != value->data() + value->size() || !(x >= low && x <= high))
    refuse(key, "a number from ", low, " to ", high, " is needed");
  return x;
}

bool JsonObject::boolean(std::string_view key, std::optional<bool> otherwise) const {
  const std::string* value = need(key, otherwise.has_value());
  if (!value) return *otherwise;
  if (*value != "true" && *value != "false") refuse(key, "true or false is needed");
  return *value == "true";
}

std::string JsonObject::word(std::string_view key, std::optional<std::string> otherwise) const {
  const std::string* value = need(key, otherwise.has_value());
  if (!value) return *otherwise;
  if (!value->starts_with('"')) refuse(key, "a text is needed");
  return JsonReader(*value, where_).string(key, static_cast<Index>(value->size()));
}

std::vector<std::string> JsonObject::words(std::string_view key) const {
  std::vector<std::string> all;
  const std::string* value = find(key);
  if (!value) return all;
  JsonReader reader(*value, where_);
  if (!reader.try_take('[')) refuse(key, "a list of texts is needed");
  for (bool first = true; !reader.try_take(']'); first = false) {
    if (!first) reader.take(',', key);
    if (reader.peek() != '"') refuse(key, "a list of texts is needed");
    all.push_back(reader.string(key, static_cast<Index>(value->size())));
  }
  return all;
}

std::vector<Index> JsonObject::integers(std::string_view key) const {
  std::vector<Index> all;
  const std::string* value = find(key);
  if (!value) return all;
  JsonReader reader(*value, where_);
  if (!reader.try_take('[')) return {reader.integer(key)};
  for (bool first = true; !reader.try_take(']'); first = false) {
    if (!first) reader.take(',', key);
    all.push_back(reader.integer(key));
  }
  return all;
}

std::vector<JsonObject> JsonObject::objects(std::string_view key) const {
  std::vector<JsonObject> all;
  const std::string* value = find(key);
  if (!value) return all;
  JsonReader reader(*value, where_);
  if (!reader.try_take('[')) refuse(key, "a list of objects is needed");
  for (bool first = true; !reader.try_take(']'); first = false) {
    if (!first) reader.take(',', key);
    if (reader.peek() != '{') refuse(key, "a list of objects is needed");
    const std::size_t begin = reader.at();
    reader.skip(key);
    all.emplace_back(std::string_view(*value).substr(begin, reader.at() - begin),
                     text(where_, ": \"", key, "\" ", all.size()));
  }
  return all;
}

bool JsonObject::is_object(std::string_view key) const { return has(key) && find(key)->starts_with('{'); }

JsonObject JsonObject::object(std::string_view key) const {
  const std::string where = text(where_, ": \"", key, '"');
  if (!has(key)) return JsonObject("{}", where);
  if (!is_object(key)) refuse(key, "an object is needed");
  return JsonObject(*find(key), where);
}

}  // namespace headwise
