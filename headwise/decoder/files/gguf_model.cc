// Decoders in GGUF files: settings and names of llama, qwen2, qwen3, gemma, gemma2, gemma3 and gpt2.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <set>

#include "headwise/decoder/files/source.h"
#include "headwise/decoder/files/weight_names.h"
#include "headwise/model/gguf/gguf.h"
#include "headwise/text/pieces/tokenizer_gguf.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "decoder";
constexpr Index kMost = Index{1} << 31;

class GgufSource final : public DecoderSource {
 public:
  explicit GgufSource(const std::string& path) : file_(path) {
    family_ = file_.word("general.architecture");
    read_config();
    config_.check(text(kOp, ": ", path));
    tokenizer_ = read_gguf_tokenizer(file_, config_.vocabulary);
    chat_template_ = file_.word("tokenizer.chat_template", std::string());
  }

  void check(const std::string& name, Index rows, Index columns) override {
    const std::string theirs = gguf_weight_name(name);
    const GgufTensor* t = file_.find(theirs);
    require(t != nullptr, ErrorKind::bad_argument, kOp, file_.path(), ": the tensor ", theirs, " is missing");
    const bool fits = rows > 0 ? t->rank == 2 && t->size[0] == rows && t->size[1] == columns
                               : t->rank == 1 && t->size[0] == columns;
    require(fits, ErrorKind::bad_shape, kOp, file_.path(), ": the tensor ", theirs, " has ", t->numbers,
            " numbers; the settings ask for [", rows, " ", columns, "]");
    used_.insert(theirs);
  }
  void read(const std::string& name, Index rows, Index, float* to) override {
    const GgufTensor* t = file_.find(gguf_weight_name(name));
    file_.read_rows(*t, 0, rows > 0 ? rows : 1, to);
    require(file_.intact(), ErrorKind::bad_argument, kOp, file_.path(), ": was cut short while it was read");
  }
  StoredFormat format(const std::string& name) const override {
    const std::string_view theirs = file_.find(gguf_weight_name(name))->format->name;
    for (std::size_t i = 0; i < std::size(kStoredFacts); ++i) {
      const std::string_view ours = kStoredFacts[i].name;
      if (std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                     [](char a, char b) { return std::toupper(static_cast<unsigned char>(a)) == b; }))
        return static_cast<StoredFormat>(i);
    }
    throw Error(ErrorKind::unsupported,
                text(kOp, ": ", file_.path(), ": keeps ", name, " as ", theirs, ", which has no product"));
  }
  void read_rows(const std::string& name, const SourceRows& part, std::byte* to) override {
    const std::span<const std::byte> from =
        file_.rows(*file_.find(gguf_weight_name(name)), part.first, part.count);
    std::memcpy(to, from.data(), from.size());
    require(file_.intact(), ErrorKind::bad_argument, kOp, file_.path(), ": was cut short while it was read");
  }
  void check_nothing_left() const override {
    for (const GgufTensor& t : file_.tensors())
      require(used_.contains(t.name) || t.name == "rope_freqs.weight", ErrorKind::unsupported, kOp,
              file_.path(), ": holds the tensor ", t.name, ", which no ", family_,
              " model that headwise knows has");
    require(file_.find("rope_freqs.weight") == nullptr, ErrorKind::unsupported, kOp, file_.path(),
            ": scales RoPE by the tensor rope_freqs.weight; that is not computed");
  }

 private:
  std::string key(const char* name) const { return text(family_, ".", name); }

  void read_config() {
    DecoderConfig& c = config_;
    c.family = family_;
    constexpr const char* kFamilies[] = {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"};
    require(std::find(std::begin(kFamilies), std::end(kFamilies), family_) != std::end(kFamilies),
            ErrorKind::unsupported, kOp, file_.path(), ": is of the architecture ", family_,
            "; llama, qwen2, qwen3, gemma, gemma2 and gemma3 are read");
    require(file_.integer(key("expert_count"), 0, kMost, 0) == 0, ErrorKind::unsupported, kOp, file_.path(),
            ": has experts; they are not computed");
    c.layers = file_.integer(key("block_count"), 1, 1000);
    c.positions = file_.integer(key("context_length"), 1, kMost);
    c.model_dim = file_.integer(key("embedding_length"), 1, kMost);
    c.feed_dim = file_.integer(key("feed_forward_length"), 1, kMost);
    c.heads = file_.integer(key("attention.head_count"), 1, 4096);
    c.kv_heads = file_.integer(key("attention.head_count_kv"), 1, 4096, c.heads);
    c.head_dim = file_.integer(key("attention.key_length"), 1, 4096, c.model_dim / c.heads);
    require(file_.integer(key("attention.value_length"), 1, 4096, c.head_dim) == c.head_dim,
            ErrorKind::unsupported, kOp, file_.path(), ": values have another width than keys");
    c.eps = file_.number(key("attention.layer_norm_rms_epsilon"), 0, 1);
    const GgufTensor* embed = file_.find("token_embd.weight");
    require(embed != nullptr && embed->rank == 2, ErrorKind::bad_argument, kOp, file_.path(),
            ": has no token_embd.weight of two sizes");
    c.vocabulary = embed->size[0];
    c.tied = file_.find("output.weight") == nullptr;
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    read_rope();
    c.qkv_bias = file_.find("blk.0.attn_q.bias") != nullptr;
    c.head_norms = file_.find("blk.0.attn_q_norm.weight") != nullptr;
    if (family_.starts_with("gemma")) read_gemma();
  }

  /// Architecture llama has its q and k rows in the order of interleaved pairs.
  void read_rope() {
    DecoderConfig& c = config_;
    c.rope.kind = family_ == "llama" ? RopeKind::interleaved : RopeKind::half;
    c.rope.base = file_.number(key("rope.freq_base"), 1e-3, 1e12, 10000.0);
    require(file_.integer(key("rope.dimension_count"), 0, 4096, c.head_dim) == c.head_dim,
            ErrorKind::unsupported, kOp, file_.path(), ": turns a part of a head alone; that is not read");
    const std::string scaling = file_.word(key("rope.scaling.type"), "none");
    const double factor = file_.number(key("rope.scaling.factor"), 0, 1e6, 1.0);
    if (scaling == "linear") c.rope.scaling = RopeScaling::linear(factor);
    require(scaling == "none" || scaling == "linear", ErrorKind::unsupported, kOp, file_.path(),
            ": scales RoPE by ", scaling, "; none and linear are read from GGUF");
    c.sliding_rope = c.rope;
  }

  void read_gemma() {
    DecoderConfig& c = config_;
    c.norm_weight = WeightForm::plain;  // the file has the 1 added already
    c.activation = Activation::gelu_tanh;
    c.embed_scale = std::sqrt(static_cast<double>(c.model_dim));
    c.norms_behind = family_ != "gemma";
    if (family_ == "gemma2") {
      c.attention_softcap = file_.number("gemma2.attn_logit_softcapping", 0, 1e6, 50.0);
      c.logit_softcap = file_.number("gemma2.final_logit_softcapping", 0, 1e6, 30.0);
    }
    if (family_ == "gemma") return;
    const Index window = file_.integer(key("attention.sliding_window"), 1, kMost);
    const Index each = family_ == "gemma2" ? 2 : 6;  // the last of so many layers sees all
    for (Index layer = 0; layer < c.layers; ++layer)
      if (layer % each != each - 1) c.windows[static_cast<std::size_t>(layer)] = window;
    if (family_ == "gemma3") c.sliding_rope = {.kind = RopeKind::half, .base = 10000};
  }

  Gguf file_;
  std::string family_;
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<DecoderSource> open_gguf_decoder(const std::string& path) {
  return std::make_unique<GgufSource>(path);
}

}  // namespace headwise
