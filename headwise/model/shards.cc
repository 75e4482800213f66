#include "headwise/model/shards.h"

#include <algorithm>
#include <map>

#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "safetensors shards";
constexpr std::size_t kMostShards = 10'000;

using WeightMap = std::map<std::string, std::string, std::less<>>;

/// {"metadata": {key: text or number}, "weight_map": {tensor: file}}
class IndexParser {
 public:
  IndexParser(std::string_view text, std::string_view path, const SafetensorsLimits& limits)
      : json_(text, headwise::text(kOp, ": ", path)), size_(text.size()), limits_(limits) {}

  WeightMap parse() {
    json_.take('{', "the index");
    bool map_seen = false, metadata_seen = false;
    if (!json_.try_take('}')) do {
        const std::string key = json_.string("a key", 64);
        json_.take(':', "a key");
        bool& seen = key == "weight_map" ? map_seen : metadata_seen;
        if (seen) json_.refuse(quoted(key), " stands there twice");
        seen = true;
        if (key == "weight_map")
          read_map();
        else if (key == "metadata")
          skip_metadata();
        else
          json_.refuse("got a key ", quoted(key), "; metadata and weight_map are all an index may have");
      } while (more());
    if (!map_seen) json_.refuse("it has no weight_map");
    if (json_.peek() != '\0' || json_.at() != size_) json_.refuse("something stands after the closing '}'");
    return std::move(map_);
  }

 private:
  bool more() {
    if (json_.try_take(',')) return true;
    json_.take('}', "an object");
    return false;
  }
  void skip_metadata() {
    json_.take('{', "metadata");
    if (json_.try_take('}')) return;
    do {
      json_.string("a key of metadata", 1024);
      json_.take(':', "a key of metadata");
      if (json_.peek() == '"')
        json_.string("metadata", limits_.metadata_bytes);
      else
        json_.integer("metadata");
    } while (more());
  }
  void read_map() {
    json_.take('{', "weight_map");
    if (json_.try_take('}')) return;
    do {
      const std::string name = json_.string("a tensor's name", limits_.name_bytes);
      json_.about(name);
      json_.take(':', "its shard");
      std::string file = json_.string("its shard", 255);
      const bool plain = file.find('/') == std::string::npos && file.find('\\') == std::string::npos &&
                         file[0] != '.' && file.size() > 12 && file.ends_with(".safetensors");
      if (!plain)
        json_.refuse("its shard is ", quoted(file),
                     "; shards are names of .safetensors files in the index's own folder");
      if (!map_.emplace(name, std::move(file)).second) json_.refuse("it stands there twice");
      if (static_cast<Index>(map_.size()) > limits_.entries)
        json_.refuse("more than ", limits_.entries, " tensors");
      json_.about({});
    } while (more());
  }

  JsonReader json_;
  std::size_t size_;
  const SafetensorsLimits& limits_;
  WeightMap map_;
};

}  // namespace

SafetensorsShards::SafetensorsShards(const std::string& index_path, const SafetensorsOptions& options)
    : path_(index_path) {
  const std::string index = read_text(index_path, options.limits.header_bytes, kOp);
  const Index bad = first_bad_utf8(index);
  require(bad < 0, ErrorKind::bad_argument, kOp, index_path, ": byte ", bad, " is no UTF-8 text");
  const WeightMap map = IndexParser(index, index_path, options.limits).parse();
  std::map<std::string, std::size_t, std::less<>> number;
  for (const auto& [name, file] : map) number.emplace(file, 0);
  require(number.size() <= kMostShards, ErrorKind::bad_argument, kOp, index_path, ": names ", number.size(),
          " shards; at most ", kMostShards, " are opened");
  const std::string folder = folder_of(index_path);
  for (auto& [file, i] : number) {
    i = shards_.size();
    shards_.emplace_back(text(folder, '/', file), options);
    for (const SafetensorsEntry& e : shards_.back().entries()) {
      const auto at = map.find(e.name);
      if (at == map.end() || at->second != file) [[unlikely]]
        throw Error(ErrorKind::bad_argument,
                    text(kOp, ": ", index_path, ": ", file, " holds ", quoted(e.name), ", which the index ",
                         at == map.end() ? "does not name" : "places in " + at->second));
    }
  }
  for (const auto& [name, file] : map) {
    const std::size_t shard = number.find(file)->second;
    if (!shards_[shard].has(name)) [[unlikely]]
      throw Error(ErrorKind::bad_argument, text(kOp, ": ", index_path, ": ", file, " has no ", quoted(name),
                                                ", though the index places it there"));
    shard_of_.push_back({name, shard});
  }
}

std::vector<std::string> SafetensorsShards::names() const {
  std::vector<std::string> all;
  for (const Named& n : shard_of_) all.push_back(n.name);
  return all;
}

bool SafetensorsShards::intact() const noexcept {
  for (const Safetensors& s : shards_)
    if (!s.intact()) return false;
  return true;
}

const SafetensorsShards::Named* SafetensorsShards::find(std::string_view name) const {
  const auto at = std::lower_bound(shard_of_.begin(), shard_of_.end(), name,
                                   [](const Named& n, std::string_view asked) { return n.name < asked; });
  return at == shard_of_.end() || at->name != name ? nullptr : &*at;
}

Safetensors& SafetensorsShards::shard_with(std::string_view name) {
  const Named* at = find(name);
  if (at == nullptr)
    throw Error(ErrorKind::bad_argument, text(kOp, ": ", path_, ": has no ", quoted(name), " among its ",
                                              shard_of_.size(), " tensors"));
  return shards_[at->shard];
}

}  // namespace headwise
