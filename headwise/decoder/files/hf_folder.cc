// Decoders in Hugging Face folders: config.json, safetensors in one file or shards, tokenizer.json.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "headwise/decoder/files/hf_config.h"
#include "headwise/decoder/files/source.h"
#include "headwise/decoder/files/weight_names.h"
#include "headwise/model/json_reader.h"
#include "headwise/model/shards.h"
#include "headwise/text/pieces/tokenizer_json.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "decoder";

class HfSource final : public DecoderSource {
 public:
  explicit HfSource(const std::string& folder) : folder_(folder) {
    const JsonObject json = JsonObject::read(folder + "/config.json", kOp);
    config_ = hf_decoder_config(json);
    config_.check(text(kOp, ": ", folder, "/config.json"));
    const std::string index = folder + "/model.safetensors.index.json";
    std::error_code code;
    if (std::filesystem::exists(index, code))
      shards_.emplace(index);
    else
      file_.emplace(folder + "/model.safetensors");
    const std::string front = gpt2() ? "transformer." : "model.",
                      first = gpt2() ? "wte.weight" : "embed_tokens.weight";
    bare_ = !has(front + first) && has(first);
    read_tokenizer(json);
  }

  void check(const std::string& name, Index rows, Index columns) override {
    const Place p = place_of(name);
    if (!has(p.name)) refuse(text("has no ", quoted(p.name), "; config.json asks for it"));
    const SafetensorsEntry& e = entry(p.name);
    const Index in_file = p.parts * (rows > 0 ? rows : columns);
    const bool fits = rows == 0  ? e.rank == 1 && e.size[0] == in_file
                      : p.turned ? e.rank == 2 && e.size[0] == columns && e.size[1] == in_file
                                 : e.rank == 2 && e.size[0] == rows && e.size[1] == columns;
    if (!fits)
      refuse(text(quoted(p.name), " has other sizes than config.json asks for, [", rows, " ", columns, "]"));
    if (!e.as_dtype() || !is_float(*e.as_dtype()))
      refuse(text(quoted(p.name), " is ", e.dtype, "; F32, F64, BF16 and F16 are read"));
    used_.insert(p.name);
  }

  void read(const std::string& name, Index rows, Index columns, float* to) override {
    const Place p = place_of(name);
    const ConstView from = view(p.name);
    const Index all = p.parts * (rows > 0 ? rows : columns);  // columns of a turned matrix, numbers of a bias
    const Index lines = rows > 0 ? rows : 1;
    for (Index r = 0; r < lines; ++r)
      for (Index i = 0; i < columns; ++i) {
        const Index at = rows == 0  ? p.part * columns + i
                         : p.turned ? i * all + p.part * rows + r
                                    : r * columns + i;
        const double x = load_double(from.data, from.dtype, at);
        if (!std::isfinite(x)) refuse(text(quoted(p.name), " holds a number that is not finite"));
        to[r * columns + i] = static_cast<float>(x);
      }
    if (!(file_ ? file_->intact() : shards_->intact()))
      refuse("its weights were cut short while they were read");
  }

  StoredFormat format(const std::string& name) const override {
    const Place p = place_of(name);
    const std::optional<DType> kept = const_cast<HfSource*>(this)->entry(p.name).as_dtype();
    if (p.turned || kept == DType::f64) return StoredFormat::f32;
    return kept == DType::bf16  ? StoredFormat::bf16
           : kept == DType::f16 ? StoredFormat::f16
                                : StoredFormat::f32;
  }
  void read_rows(const std::string& name, const SourceRows& part, std::byte* to) override {
    const Place p = place_of(name);
    const ConstView from = view(p.name);
    if (p.turned || from.dtype == DType::f64) return DecoderSource::read_rows(name, part, to);
    const Index begin = part.first * part.columns, count = part.count * part.columns;
    for (Index i = begin; i < begin + count; ++i)
      if (!std::isfinite(load_double(from.data, from.dtype, i)))
        refuse(text(quoted(p.name), " holds a number that is not finite"));
    std::memcpy(to, static_cast<const std::byte*>(from.data) + begin * size_of(from.dtype),
                static_cast<std::size_t>(count * size_of(from.dtype)));
    if (!(file_ ? file_->intact() : shards_->intact()))
      refuse("its weights were cut short while they were read");
  }
  void check_nothing_left() const override {
    auto* self = const_cast<HfSource*>(this);
    for (const std::string& name : names()) {
      const bool passed = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
                          name.ends_with("rotary_emb.inv_freq");
      if (used_.contains(name) || passed) continue;
      if (name == "lm_head.weight" && config_.tied) {
        const ConstView a = self->view(name), b = self->view(place_of("embed").name);
        if (a.dtype == b.dtype && a.count() == b.count() &&
            std::memcmp(a.data, b.data, static_cast<std::size_t>(a.count() * size_of(a.dtype))) == 0)
          continue;
        refuse("has an lm_head.weight of its own, but config.json ties it to the embedding");
      }
      refuse(
          text("holds ", quoted(name), ", which config.json does not ask for; they are of different models"));
    }
  }

 private:
  /// Where a weight lies: in GPT-2 as [in out], and q, k, v side by side.
  struct Place {
    std::string name;
    bool turned = false;
    Index part = 0, parts = 1;
  };
  bool gpt2() const { return config_.family == "gpt2"; }
  Place place_of(const std::string& ours) const {
    if (gpt2()) return gpt2_place(ours);
    std::string name = hf_weight_name(ours, config_.norms_behind);
    if (bare_ && name.starts_with("model.")) name.erase(0, 6);
    return {.name = std::move(name)};
  }
  Place gpt2_place(const std::string& ours) const {
    const std::string front = bare_ ? "" : "transformer.";
    if (ours == "embed") return {.name = front + "wte.weight"};
    if (ours == "positions") return {.name = front + "wpe.weight"};
    if (ours == "head") return {.name = "lm_head.weight"};
    if (ours.starts_with("norm.")) return {.name = front + "ln_f" + ours.substr(4)};
    const std::size_t number = ours.find('.') + 1, part = ours.find('.', number) + 1, kind = ours.rfind('.');
    const std::string name = ours.substr(part, kind - part),
                      at = front + "h." + ours.substr(number, part - number);
    const std::string tail = ours.substr(kind);
    if (name == "norm_1") return {.name = at + "ln_1" + tail};
    if (name == "norm_2") return {.name = at + "ln_2" + tail};
    if (name == "o") return {.name = at + "attn.c_proj" + tail, .turned = true};
    if (name == "up") return {.name = at + "mlp.c_fc" + tail, .turned = true};
    if (name == "down") return {.name = at + "mlp.c_proj" + tail, .turned = true};
    return {.name = at + "attn.c_attn" + tail,
            .turned = true,
            .part = name == "q"   ? 0
                    : name == "k" ? 1
                                  : 2,
            .parts = 3};
  }

  bool has(const std::string& name) const { return file_ ? file_->has(name) : shards_->has(name); }
  const SafetensorsEntry& entry(const std::string& name) {
    return file_ ? file_->entry(name) : shards_->entry(name);
  }
  ConstView view(const std::string& name) { return file_ ? file_->view(name) : shards_->view(name); }
  std::vector<std::string> names() const {
    if (shards_) return shards_->names();
    std::vector<std::string> all;
    for (const SafetensorsEntry& e : file_->entries()) all.push_back(e.name);
    return all;
  }
  [[noreturn]] void refuse(std::string_view sentence) const {
    throw Error(ErrorKind::bad_argument, text(kOp, ": ", folder_, ": ", sentence));
  }

  void read_tokenizer(const JsonObject& json) {
    std::error_code code;
    const std::string path = folder_ + "/tokenizer.json", settings = folder_ + "/tokenizer_config.json";
    if (!std::filesystem::exists(path, code)) return;
    std::vector<Index> ends = json.integers("eos_token_id");
    const std::string own = folder_ + "/generation_config.json";
    if (std::filesystem::exists(own, code)) {
      const std::vector<Index> said = JsonObject::read(own, kOp).integers("eos_token_id");
      if (!said.empty()) ends = said;
    }
    tokenizer_ = read_json_tokenizer(path, config_.vocabulary, {ends.begin(), ends.end()});
    if (!std::filesystem::exists(settings, code)) return;
    const JsonObject more = JsonObject::read(settings, kOp, Index{16} << 20);
    if (more.is_text("chat_template")) chat_template_ = more.word("chat_template");
  }

  std::string folder_;
  std::optional<Safetensors> file_;
  std::optional<SafetensorsShards> shards_;
  bool bare_ = false;  // names come without "model." or "transformer."
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<DecoderSource> open_hf_decoder(const std::string& folder) {
  return std::make_unique<HfSource>(folder);
}

}  // namespace headwise
