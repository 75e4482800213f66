// SafetensorsShards: the tensors of several safetensors files beside one index.json, by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/model/safetensors.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Every tensor of the index must lie in the shard named for it and in no other; shards are plain names of
/// files in the index's own folder, ending in ".safetensors".
class SafetensorsShards {
 public:
  explicit SafetensorsShards(const std::string& index_path, const SafetensorsOptions& options = {});
  /// Ascending.
  std::vector<std::string> names() const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsEntry& entry(std::string_view name) { return shard_with(name).entry(name); }
  ConstView view(std::string_view name) { return shard_with(name).view(name); }
  void read(std::string_view name, const AnyView& out) { shard_with(name).read(name, out); }
  /// False once a mapped page was gone when it was read.
  bool intact() const noexcept;

 private:
  struct Named {
    std::string name;
    std::size_t shard;
  };
  /// Null when there is none.
  const Named* find(std::string_view name) const;
  Safetensors& shard_with(std::string_view name);
  std::string path_;
  std::vector<Safetensors> shards_;
  std::vector<Named> shard_of_;  // by name, ascending
};

}  // namespace headwise
#pragma GCC visibility pop
