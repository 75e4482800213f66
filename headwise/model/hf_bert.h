// hf_bert: the weights of a pretrained BERT-style encoder in safetensors, by name into a Transformer's.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/model/safetensors.h"
#include "headwise/model/shards.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A folder with config.json and model.safetensors, or shards beside model.safetensors.index.json. Opening
/// checks that every weight the configuration asks for is there in its size, so that nothing is allocated for
/// what the files do not hold. Names may begin with "bert."; norms may be called gamma and beta.
class BertWeights {
 public:
  explicit BertWeights(const std::string& folder, const SafetensorsOptions& options = {});

  const TransformerConfig& config() const { return config_; }
  /// The files' name of a parameter of ours; "": they have none.
  std::string name_of(std::string_view ours) const;
  /// One tensor of the files by their name, and all their names.
  ConstView view(const std::string& theirs) { return file_ ? file_->view(theirs) : shards_->view(theirs); }
  std::vector<std::string> names() const;
  /// Copies every weight into the parameters a Transformer of config() declares under `scope` ("": none), in
  /// the set's dtype. A weight that is not finite is refused by name, and so is a file cut short meanwhile.
  void load(ParamSet& params, std::string_view scope = {});
  /// Tensors of the files that no encoder has: poolers and heads of other tasks.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  struct Name {
    std::string ours, theirs;
    std::vector<Index> sizes;
  };
  static std::vector<Name> names_of(const TransformerConfig& config);
  const SafetensorsEntry& entry(const std::string& name);
  bool has(const std::string& name) const;
  [[noreturn]] void refuse(std::string_view sentence) const;

  std::string folder_;
  TransformerConfig config_;
  std::optional<Safetensors> file_;
  std::optional<SafetensorsShards> shards_;
  std::vector<Name> names_;  // theirs as the files spell it
  std::vector<std::string> unused_;
};

}  // namespace headwise
#pragma GCC visibility pop
