#include "headwise/cli/decoder/head_plan.h"

#include <nlohmann/json.hpp>

#include "headwise/base/error.h"
#include "headwise/model/file.h"

namespace headwise::cli {

std::vector<HeadPolicy> read_head_plan(const std::string& path, const KvShape& shape) {
  constexpr Index kMost = Index{16} << 20;
  const nlohmann::json plan = nlohmann::json::parse(read_text(path, kMost, "--policy"), nullptr, false);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::bad_argument, text("--policy: ", path, ": ", why));
  };
  if (plan.is_discarded() || !plan.is_object() || !plan.contains("heads") || !plan["heads"].is_array())
    refuse("is no JSON object with a list \"heads\" of layers; headwise policy writes one");
  const nlohmann::json& layers = plan["heads"];
  if (static_cast<Index>(layers.size()) != shape.layers)
    refuse(text("has ", layers.size(), " layers but the model has ", shape.layers,
                "; give a plan of this model"));
  std::vector<HeadPolicy> heads;
  for (const nlohmann::json& layer : layers) {
    if (!layer.is_array() || static_cast<Index>(layer.size()) != shape.kv_heads)
      refuse(text("has a layer that is no list of ", shape.kv_heads,
                  " texts, one for each kv head; give a plan of this model"));
    for (const nlohmann::json& policy : layer) {
      if (!policy.is_string()) refuse("has a policy that is no text; write it as \"full\" or \"window:256\"");
      heads.push_back(parse_head_policy(policy.get<std::string>()));
    }
  }
  return heads;
}

}  // namespace headwise::cli
