// Whisper's decoder in a model.bin of CTranslate2: its names, sizes and the alignment heads of config.json.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "headwise/decoder/files/source.h"
#include "headwise/model/ct2_file.h"
#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/tokenizer_json.h"

namespace headwise {
namespace {

/// A number of the file, whose tensors begin at any byte.
double number_at(const std::byte* from, DType dtype, Index i) {
  alignas(8) std::byte one[8];
  std::memcpy(one, from + i * size_of(dtype), static_cast<std::size_t>(size_of(dtype)));
  return load_double(one, dtype, 0);
}

constexpr std::string_view kOp = "whisper";

/// Where a weight lies: rows of several lie one under the other in one variable.
struct Place {
  std::string name;
  Index part = 0, parts = 1;
};

Place place_in_layer(const std::string& at, const std::string& name, const std::string& tail) {
  const std::string own = at + "self_attention/", cross = at + "attention/", feed = at + "ffn/";
  const auto norm = [&](const std::string& where) {
    return Place{where + "layer_norm/" + (tail == "weight" ? "gamma" : "beta")};
  };
  if (name == "norm_1") return norm(own);
  if (name == "cross_norm") return norm(cross);
  if (name == "norm_2") return norm(feed);
  if (name == "q") return {own + "linear_0/" + tail, 0, 3};
  if (name == "k") return {own + "linear_0/" + tail, 1, 3};
  if (name == "v") return {own + "linear_0/" + tail, 2, 3};
  if (name == "o") return {own + "linear_1/" + tail};
  if (name == "cross_q") return {cross + "linear_0/" + tail};
  if (name == "cross_k") return {cross + "linear_1/" + tail, 0, 2};
  if (name == "cross_v") return {cross + "linear_1/" + tail, 1, 2};
  if (name == "cross_o") return {cross + "linear_2/" + tail};
  return {feed + (name == "up" ? "linear_0/" : "linear_1/") + tail};
}

Place place_of(const std::string& ours) {
  if (ours == "embed") return {"decoder/embeddings/weight"};
  if (ours == "positions") return {"decoder/position_encodings/encodings"};
  if (ours == "head") return {"decoder/projection/weight"};
  if (ours == "norm.weight") return {"decoder/layer_norm/gamma"};
  if (ours == "norm.bias") return {"decoder/layer_norm/beta"};
  const std::size_t number = ours.find('.') + 1, part = ours.find('.', number), kind = ours.rfind('.');
  return place_in_layer("decoder/layer_" + ours.substr(number, part - number) + "/",
                        ours.substr(part + 1, kind - part - 1), ours.substr(kind + 1));
}

class WhisperSource final : public DecoderSource {
 public:
  explicit WhisperSource(const std::string& path) : file_(path) {
    require(file_.header().spec == "WhisperSpec", ErrorKind::unsupported, kOp, path, ": is a ",
            file_.header().spec, " of CTranslate2; WhisperSpec alone is read");
    read_config();
    read_neighbours();
    config_.check(text(kOp, ": ", path));
  }

  void check(const std::string& name, Index rows, Index columns) override {
    const Place p = place_of(name);
    const Ct2Variable* v = file_.find(p.name);
    if (v == nullptr) refuse(text("has no ", quoted(p.name)));
    const bool fits = rows == 0 ? v->rank == 1 && v->size[0] == p.parts * columns
                                : v->rank == 2 && v->size[0] == p.parts * rows && v->size[1] == columns;
    if (!fits) refuse(text(quoted(p.name), " has other sizes than the rest of the file asks for"));
    if (!v->as_float().has_value())
      refuse(text(quoted(p.name), " holds whole numbers; f32, f16 and bf16 are read, so convert the model ",
                  "without quantization"));
    used_.insert(v->name);
  }
  void read(const std::string& name, Index rows, Index columns, float* to) override {
    const Place p = place_of(name);
    const Ct2Variable& v = *file_.find(p.name);
    const std::byte* from = file_.bytes_of(v).data();
    const Index numbers = columns * (rows > 0 ? rows : 1), first = p.part * numbers;
    for (Index i = 0; i < numbers; ++i) {
      const double x = number_at(from, *v.as_float(), first + i);
      if (!std::isfinite(x)) refuse(text(quoted(p.name), " holds a number that is not finite"));
      to[i] = static_cast<float>(x);
    }
    check_intact();
  }
  StoredFormat format(const std::string& name) const override {
    const Ct2Variable* v = file_.find(place_of(name).name);
    return v->as_float() == DType::f16    ? StoredFormat::f16
           : v->as_float() == DType::bf16 ? StoredFormat::bf16
                                          : StoredFormat::f32;
  }
  void read_rows(const std::string& name, const SourceRows& part, std::byte* to) override {
    const Place p = place_of(name);
    const Ct2Variable& v = *file_.find(p.name);
    const DType dtype = *v.as_float();
    const Index first = (p.part * part.rows + part.first) * part.columns, numbers = part.count * part.columns;
    const std::byte* from = file_.bytes_of(v).data();
    for (Index i = first; i < first + numbers; ++i)
      if (!std::isfinite(number_at(from, dtype, i)))
        refuse(text(quoted(p.name), " holds a number that is not finite"));
    std::memcpy(to, from + first * size_of(dtype), static_cast<std::size_t>(numbers * size_of(dtype)));
    check_intact();
  }
  void check_nothing_left() const override {
    for (const Ct2Variable& v : file_.header().variables)
      if (v.name.starts_with("decoder/") && v.numbers > 1 && !used_.contains(v.name))
        refuse(text("holds ", quoted(v.name), ", which no decoder that headwise knows has"));
  }

 private:
  [[noreturn]] void refuse(std::string_view sentence) const {
    throw Error(ErrorKind::bad_argument, text(kOp, ": ", file_.path(), ": ", sentence));
  }
  void check_intact() const {
    if (!file_.intact()) refuse("was cut short while it was read");
  }
  /// Axis `axis` of a variable of `rank` sizes.
  Index size(const std::string& name, int rank, int axis) const {
    const Ct2Variable* v = file_.find(name);
    if (v == nullptr || v->rank != rank) refuse(text("has no ", quoted(name), " of ", rank, " sizes"));
    return v->size[axis];
  }
  /// A setting that must have one value, since no other is computed.
  void fixed(const char* name, Index value) const {
    const Index got = file_.integer(text("decoder/", name), value);
    if (got != value) refuse(text("has ", name, " ", got, "; ", value, " alone is computed"));
  }

  void read_config() {
    DecoderConfig& c = config_;
    c.family = "whisper";
    c.vocabulary = size("decoder/embeddings/weight", 2, 0);
    c.model_dim = size("decoder/embeddings/weight", 2, 1);
    c.positions = size("decoder/position_encodings/encodings", 2, 0);
    while (file_.find(text("decoder/layer_", c.layers, "/self_attention/linear_0/weight")) != nullptr)
      ++c.layers;
    c.feed_dim = size("decoder/layer_0/ffn/linear_0/weight", 2, 0);
    c.heads = c.kv_heads = file_.integer("decoder/num_heads");
    if (c.heads < 1 || c.model_dim % c.heads != 0)
      refuse(text("has ", c.heads, " heads in ", c.model_dim, " columns; the one must divide the other"));
    c.head_dim = c.model_dim / c.heads;
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    c.norm = NormKind::layer, c.gated = false, c.cross = true;
    c.qkv_bias = c.out_bias = c.feed_bias = c.learned_positions = true;
    const Ct2Variable* head = file_.find("decoder/projection/weight");
    c.tied = head == nullptr || head == file_.find("decoder/embeddings/weight");
    for (const auto& [name, value] : {std::pair{"pre_norm", 1},
                                      {"alibi", 0},
                                      {"scale_embeddings", 0},
                                      {"start_from_zero_embedding", 0},
                                      {"multi_query_attention", 0}})
      fixed(name, value);
    const Index activation = file_.integer("decoder/activation", 0);
    constexpr Index kGeluTanh = 1, kGelu = 3;
    if (activation != kGelu && activation != kGeluTanh)
      refuse(text("has the activation ", activation, "; 1 and 3, the two forms of GELU, are computed"));
    c.activation = activation == kGelu ? Activation::gelu : Activation::gelu_tanh;
  }

  /// config.json and tokenizer.json beside it, where they are.
  void read_neighbours() {
    const std::string folder = folder_of(file_.path());
    std::error_code code;
    if (std::filesystem::exists(folder + "/config.json", code))
      read_alignment(JsonObject::read(folder + "/config.json", kOp));
    const std::string path = folder + "/tokenizer.json";
    if (!std::filesystem::exists(path, code)) return;
    const std::unique_ptr<Tokenizer> once = read_json_tokenizer(path, config_.vocabulary, {}, true);
    const TokenId end = once->special("<|endoftext|>");
    if (end < 0) refuse("has a tokenizer.json without <|endoftext|> beside it");
    tokenizer_ = read_json_tokenizer(path, config_.vocabulary, {end}, true);
  }

  /// A list of pairs: layer and head.
  void read_alignment(const JsonObject& json) {
    const std::string* list = json.raw("alignment_heads");
    if (list == nullptr) return;
    std::vector<Index> numbers;
    bool inside = false;
    for (const char letter : *list) {
      const bool digit = letter >= '0' && letter <= '9';
      if (!digit && std::strchr("[], \n\t\r", letter) == nullptr)
        json.refuse("alignment_heads", "pairs of a layer and a head are read");
      if (digit && !inside) numbers.push_back(0);
      if (digit && numbers.back() < 1'000'000) numbers.back() = numbers.back() * 10 + (letter - '0');
      inside = digit;
    }
    if (numbers.size() % 2 != 0) json.refuse("alignment_heads", "pairs of a layer and a head are read");
    for (std::size_t i = 0; i < numbers.size(); i += 2)
      config_.alignment.push_back({numbers[i], numbers[i + 1]});
  }

  Ct2File file_;
  std::set<std::string> used_;
};

}  // namespace

std::unique_ptr<DecoderSource> open_whisper_decoder(const std::string& path) {
  return std::make_unique<WhisperSource>(path);
}

}  // namespace headwise
