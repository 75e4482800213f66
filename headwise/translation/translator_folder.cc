// The folder of a Translator: config.json, bpe.txt, model.safetensors.
#include <cmath>
#include <filesystem>

#include "headwise/base/words.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/file.h"
#include "headwise/model/json_object.h"
#include "headwise/model/safetensors.h"
#include "headwise/translation/translator.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "translator", kArchitecture = "headwise_translation";
constexpr Index kMostBytes = Index{64} << 20;  // of config.json and bpe.txt

std::string config_of(const TranslatorConfig& c, Index vocabulary) {
  return text("{\n  \"architecture\": \"", kArchitecture, "\",\n  \"version\": ", kModelVersion,
              ",\n  \"heads\": ", json_string(c.heads), ",\n  \"cross_heads\": ", json_string(c.cross_heads),
              ",\n  \"model_dim\": ", c.model_dim, ",\n  \"feed_dim\": ", c.feed_dim,
              ",\n  \"depth\": ", c.depth, ",\n  \"source_depth\": ", c.source_depth,
              ",\n  \"max_tokens\": ", c.max_tokens, ",\n  \"dropout\": ", c.dropout,
              ",\n  \"vocabulary\": ", vocabulary, "\n}\n");
}

TranslatorConfig config_from(const JsonObject& json) {
  constexpr Index kMost = Index{1} << 20;
  if (json.word("architecture") != kArchitecture)
    json.refuse("architecture", "only ", kArchitecture, " is a translator's folder");
  if (json.integer("version", 1, Index{1} << 31) > kModelVersion)
    json.refuse("version", "this headwise reads up to ", kModelVersion, ": update headwise");
  const Index max_tokens = json.integer("max_tokens", 2, kMost),
              model_dim = json.integer("model_dim", 1, kMost);
  if (max_tokens * model_dim > Index{1} << 26)  // waves are computed for each: no tensor bounds them
    json.refuse("max_tokens", "with model_dim ", model_dim, " that is more than 2^26 numbers of positions");
  return {.heads = json.word("heads"),
          .cross_heads = json.word("cross_heads"),
          .model_dim = model_dim,
          .feed_dim = json.integer("feed_dim", 1, kMost),
          .depth = json.integer("depth", 1, 1024),
          .source_depth = json.integer("source_depth", 0, 1024),
          .max_tokens = max_tokens,
          .dropout = json.number("dropout", 0, 1)};
}

/// The first parameter that holds a number that is not finite; "": none does.
std::string not_finite(const ParamSet& params) {
  for (const Param& p : params.all()) {
    const auto* x = static_cast<const float*>(p.value.data);
    for (Index i = 0; i < p.value.count(); ++i)
      if (!std::isfinite(x[i])) return p.name;
  }
  return "";
}

}  // namespace

void Translator::save(const std::string& folder) const {
  const std::string bad = not_finite(*params_);
  require(bad.empty(), ErrorKind::bad_argument, kOp, bad,
          " holds a number that is not finite; nothing was written: train with a smaller rate");
  std::vector<NamedTensor> tensors;
  for (const Param& p : params_->all()) tensors.push_back({p.name, p.value});
  replace_folder(folder, "config.json", kOp, [&](const std::string& part) {
    write_safetensors(part + "/model.safetensors", tensors, {{"format", "headwise"}});
    write_file(part + "/config.json", config_of(config_, bpe_.vocabulary()), kOp);
    write_file(part + "/bpe.txt", bpe_.print(), kOp);
  });
}

Translator Translator::load(const std::string& folder) {
  const std::filesystem::path path(folder);
  for (const char* file : {"config.json", "bpe.txt", "model.safetensors"})
    require(std::filesystem::exists(path / file), ErrorKind::bad_argument, kOp, folder, ": has no ", file,
            "; give a folder that a translator was saved to");
  const JsonObject json = JsonObject::read((path / "config.json").string(), kOp);
  const TranslatorConfig config = config_from(json);
  const std::string words = (path / "bpe.txt").string();
  Bpe bpe = Bpe::parse(read_text(words, kMostBytes, kOp), words);
  if (json.integer("vocabulary", 256, Index{1} << 31) != bpe.vocabulary())
    json.refuse("vocabulary", words, " has ", bpe.vocabulary(), " tokens: files of two models are mixed");
  Safetensors file((path / "model.safetensors").string(), {.reading = Reading::later});
  Index numbers = 0;  // sizes are bounded by what the file holds
  for (const SafetensorsEntry& e : file.entries()) numbers += (e.end - e.begin) / size_of(DType::f32);
  Translator model(std::move(bpe), config, ParamSet::blank(DType::f32, numbers));
  const auto& all = model.params_->all();
  require(file.entries().size() == all.size(), ErrorKind::bad_argument, kOp, folder,
          ": model.safetensors holds ", file.entries().size(), " tensors but the config makes ", all.size(),
          "; files of two models are mixed");
  for (const Param& p : all) file.check(p.name, p.value);  // all, before any byte is read
  for (const Param& p : all) file.read(p.name, p.value);
  const std::string bad = not_finite(*model.params_);
  require(bad.empty(), ErrorKind::bad_argument, kOp, folder, ": ", bad,
          " holds a number that is not finite; train again or take a copy");
  return model;
}

}  // namespace headwise
