#include "headwise/lab/decoder/lab_decoder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "headwise/base/words.h"
#include "headwise/decoder/files/weight_names.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/lab/model/changed_weights.h"
#include "headwise/lab/model/lab_model.h"
#include "headwise/model/json_object.h"
#include "headwise/model/shards.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kOp = "lab";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Rows and columns of a weight of a layer by our name; rows 0: a bias.
std::pair<Index, Index> shape_of(const DecoderConfig& c, const std::string& part) {
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const Index rows = part[0] == 'q' ? q : part[0] == 'o' ? c.model_dim : kv;
  if (part.ends_with(".bias")) return {0, rows};
  return {rows, part[0] == 'o' ? q : c.model_dim};
}

/// Another source's weights with some heads' columns of W_O at 0.
class GatedSource : public DecoderSource {
 public:
  GatedSource(DecoderSource& inner, const HeadPlan& plan) : inner_(inner), plan_(plan) {
    config_ = inner.config(), tokenizer_ = inner.share_tokenizer();
  }
  void check(const std::string& name, Index rows, Index columns) override {
    inner_.check(name, rows, columns);
  }
  void read(const std::string& name, Index rows, Index columns, float* to) override {
    inner_.read(name, rows, columns, to);
    if (!name.ends_with(".o.weight")) return;
    const std::size_t layer = std::stoul(name.substr(name.find('.') + 1));
    for (const Index h : plan_.cut[layer])
      for (Index r = 0; r < rows; ++r)
        std::fill_n(to + r * columns + h * config_.head_dim, config_.head_dim, 0.0f);
  }
  void check_nothing_left() const override { inner_.check_nothing_left(); }

 private:
  DecoderSource& inner_;
  const HeadPlan& plan_;
};

/// Tensors of a folder by the files' names.
class FolderTensors {
 public:
  explicit FolderTensors(const std::string& folder) {
    if (const std::string index = folder + "/model.safetensors.index.json"; fs::exists(index))
      shards_.emplace(index);
    else
      file_.emplace(folder + "/model.safetensors");
  }
  std::vector<std::string> names() const {
    if (shards_) return shards_->names();
    std::vector<std::string> all;
    for (const SafetensorsEntry& e : file_->entries()) all.push_back(e.name);
    return all;
  }
  ConstView view(const std::string& name) { return file_ ? file_->view(name) : shards_->view(name); }

 private:
  std::optional<Safetensors> file_;
  std::optional<SafetensorsShards> shards_;
};

/// log of the sum of exponentials of one row of logits.
double log_sum(const float* row, Index count) {
  const double most = *std::max_element(row, row + count);
  double sum = 0;
  for (Index i = 0; i < count; ++i) sum += std::exp(static_cast<double>(row[i]) - most);
  return most + std::log(sum);
}

}  // namespace

bool holds_decoder(const std::string& path) {
  if (!fs::is_directory(path)) return path.ends_with(".gguf") || path.ends_with(".bin");
  if (!fs::exists(path + "/config.json")) return false;
  const JsonObject json = JsonObject::read(path + "/config.json", kOp);
  return !json.has("architecture") && json.word("model_type", "bert") != "bert";
}

LabDecoder::LabDecoder(const std::string& folder, std::string_view op) : folder_(folder) {
  require(fs::is_directory(folder), ErrorKind::unsupported, op, folder,
          ": is one file; heads are cut and shared in Hugging Face folders of safetensors");
  source_ = open_decoder(folder);
  require(config().family != "gpt2", ErrorKind::unsupported, op, folder,
          ": a gpt2's config.json has no place for other heads; give a model with num_key_value_heads");
  require(source_->tokenizer() != nullptr, ErrorKind::bad_argument, op, folder,
          ": has no tokenizer beside it, so texts cannot be read; put one there");
}

std::vector<Index> LabDecoder::heads() const {
  return std::vector<Index>(at(config().layers), config().heads);
}

Tensor LabDecoder::weight(Index layer, const std::string& part) const {
  const auto [rows, columns] = shape_of(config(), part);
  if (rows == 0 && !(part[0] == 'o' ? config().out_bias : config().qkv_bias)) return {};
  Tensor t = rows > 0 ? Tensor(DType::f32, {rows, columns}) : Tensor(DType::f32, {columns});
  const std::string name = text("layers.", layer, ".", part);
  source_->check(name, rows, columns);
  source_->read(name, rows, columns, t.values<float>().data());
  return t;
}

std::vector<LabDecoder::Text> LabDecoder::read(std::span<const std::string> texts, Index most) const {
  std::vector<Text> all;
  for (const std::string& one : texts) {
    Text ids = source_->tokenizer()->encode(one, {.specials = false});
    ids.resize(std::min(ids.size(), at(min_of(most, config().positions))));
    if (ids.size() > 1) all.push_back(std::move(ids));
  }
  return all;
}

Decoder LabDecoder::without(const HeadPlan& plan, Context& ctx) const {
  GatedSource source(*source_, plan);
  return Decoder(source, {}, ctx);
}

void LabDecoder::save(const EditedDecoder& edited, const std::string& out, std::string_view op,
                      const std::function<void(const std::string&)>& look) const {
  std::error_code none;
  require(!fs::equivalent(folder_, out, none), ErrorKind::bad_argument, op, out,
          ": is the model's own folder, which is never changed; choose another name");
  replace_folder(out, "config.json", op, [&](const std::string& part) {
    write(edited, part, op);
    if (look) look(part);
  });
}

void LabDecoder::write(const EditedDecoder& edited, const std::string& part, std::string_view op) const {
  FolderTensors files(folder_);
  const std::vector<std::string> names = files.names();
  std::map<std::string, const Tensor*> changed;  // by the files' names
  for (const auto& [ours, value] : edited.values) {
    std::string name = hf_weight_name(ours, config().norms_behind);
    if (std::find(names.begin(), names.end(), name) == names.end() && name.starts_with("model."))
      name.erase(0, 6);
    changed[name] = &value;
  }
  write_changed(part + "/model.safetensors", names, changed,
                [&](const std::string& name) -> ConstView { return files.view(name); });
  const JsonObject json = JsonObject::read(folder_ + "/config.json", kOp);
  write_file(part + "/config.json",
             with_keys(json, {{"num_attention_heads", text(edited.heads)},
                              {"num_key_value_heads", text(edited.kv_heads)},
                              {"head_dim", text(config().head_dim)}}),
             op);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "tokenizer.model", "chat_template.jinja"})
    if (fs::is_regular_file(folder_ + "/" + name)) fs::copy_file(folder_ + "/" + name, part + "/" + name);
}

void each_logits(const Decoder& model, std::span<const LabDecoder::Text> texts, Context& ctx,
                 const std::function<void(std::size_t, std::span<const float>)>& look,
                 const std::function<void(Index, const AnyView&, const AnyView&, const AnyView&)>& heads) {
  DecoderStep step;
  step.look = heads;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    KvCache cache(model.kv_shape(), {});
    const SequenceId id = cache.open();
    require(cache.reserve(id, std::ssize(texts[i])), ErrorKind::out_of_memory, kOp,
            "there is no room for a text of ", texts[i].size(), " tokens; give shorter ones");
    std::vector<DecoderRow> rows;
    for (const TokenId token : texts[i]) rows.push_back({id, token, static_cast<bool>(look)});
    model.forward(rows, cache, step, ctx);
    if (look) look(i, {step.logits(0).data(), texts[i].size() * at(model.config().vocabulary)});
  }
}

double next_token_loss(const Decoder& model, std::span<const LabDecoder::Text> texts, Context& ctx) {
  const Index wide = model.config().vocabulary;
  double sum = 0;
  Index count = 0;
  each_logits(model, texts, ctx, [&](std::size_t t, std::span<const float> logits) {
    for (std::size_t i = 0; i + 1 < texts[t].size(); ++i, ++count) {
      const float* row = logits.data() + i * at(wide);
      sum += log_sum(row, wide) - static_cast<double>(row[texts[t][i + 1]]);
    }
  });
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

double next_token_kl(const Decoder& before, const Decoder& after, std::span<const LabDecoder::Text> texts,
                     Context& ctx) {
  const Index wide = before.config().vocabulary;
  double sum = 0;
  Index count = 0;
  std::vector<float> own;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const auto one = texts.subspan(t, 1);
    each_logits(before, one, ctx, [&](std::size_t, std::span<const float> logits) {
      own.assign(logits.begin(), logits.end());
    });
    each_logits(after, one, ctx, [&](std::size_t, std::span<const float> logits) {
      for (std::size_t i = 0; i < one[0].size(); ++i, ++count) {
        const float *p = own.data() + i * at(wide), *q = logits.data() + i * at(wide);
        const double lp = log_sum(p, wide), lq = log_sum(q, wide);
        for (Index v = 0; v < wide; ++v) {
          const double a = static_cast<double>(p[v]) - lp, b = static_cast<double>(q[v]) - lq;
          sum += std::exp(a) * (a - b);
        }
      }
    });
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

}  // namespace headwise
