#include "headwise/text/text_encoder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "headwise/layers/transformer/abroad.h"
#include "headwise/model/hf_bert.h"
#include "headwise/model/hf_config.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "text encoder";

/// The first of the limits a folder names, and never more than there are positions.
Index most_tokens(const std::string& folder, Index wanted, Index positions) {
  const std::string sentence = folder + "/sentence_bert_config.json";
  Index most = wanted;
  if (most == 0 && std::filesystem::exists(sentence))
    most = JsonObject::read(sentence, kOp).integer("max_seq_length", 3, 1'000'000, 0);
  if (most == 0) most = read_bert_tokenizer_config(folder + "/tokenizer_config.json").max_tokens;
  if (most == 0) most = positions;
  require(wanted == 0 || (wanted >= 3 && wanted <= positions), ErrorKind::bad_argument, kOp, "max_tokens is ",
          wanted, "; ", folder, " has positions for 3 to ", positions, " tokens");
  return min_of(most, positions);
}

/// True: the mean of all rows; false: the row of [CLS].
bool folder_pools_mean(const std::string& folder) {
  const std::string path = folder + "/1_Pooling/config.json";
  if (!std::filesystem::exists(path)) return true;
  const JsonObject json = JsonObject::read(path, kOp);
  const bool mean = json.boolean("pooling_mode_mean_tokens", false),
             first = json.boolean("pooling_mode_cls_token", false);
  for (const std::string& key : json.keys())
    if (key.starts_with("pooling_mode_") && key != "pooling_mode_mean_tokens" &&
        key != "pooling_mode_cls_token" && json.boolean(key, false))
      json.refuse(key, "the mean of all tokens and [CLS] are computed");
  if (mean == first) json.refuse("pooling_mode_mean_tokens", "choose it or pooling_mode_cls_token");
  return mean;
}

}  // namespace

Vocabulary read_bert_vocabulary(const std::string& folder, Index rows) {
  Vocabulary v = Vocabulary::read(folder + "/vocab.txt");
  require(v.size() <= rows, ErrorKind::bad_argument, kOp, folder, ": vocab.txt has ", v.size(),
          " pieces but config.json a vocab_size of ", rows, "; they are of different models");
  for (const char* piece : {"[UNK]", "[CLS]", "[SEP]"})
    require(v.find(piece) >= 0, ErrorKind::bad_argument, kOp, folder, ": vocab.txt has no ", piece,
            "; a BERT vocabulary has [UNK], [CLS] and [SEP]");
  return v;
}

TextEncoder::TextEncoder(const std::string& folder, const TextEncoderOptions& options)
    : options_(options), params_(ParamSet::blank()) {
  require(options.batch_tokens > 0, ErrorKind::bad_argument, kOp, "batch_tokens is ", options.batch_tokens,
          "; it starts at 1");
  BertWeights weights(folder);
  const TransformerConfig& config = weights.config();
  tokenizer_.emplace(
      read_bert_vocabulary(folder, config.vocabulary),
      WordPieceOptions{.words = read_bert_tokenizer_config(folder + "/tokenizer_config.json").words});
  max_tokens_ = most_tokens(folder, options.max_tokens, config.max_tokens);
  pooling_ = folder_pools_mean(folder) ? Pooling::mean : Pooling::first;
  model_.emplace(params_, config);
  weights.load(params_);
}

void TextEncoder::to(Device device, Context& ctx) {
  if (device == moved_.device()) return;
  if (!moved_.device().is_cpu()) moved_.bring_home(ctx);
  if (device.is_cpu()) return;
  constexpr std::string_view kAll[] = {""};
  moved_ = DeviceParams(params_, kAll, device, ctx);
}

/// Rows of the batch's texts into those of `out` that `numbers` names.
void TextEncoder::pool(const AnyView& rows, std::span<const Index> numbers, std::span<const Index> offsets,
                       const AnyView& out) const {
  const Index columns = model_dim();
  const auto* x = static_cast<const float*>(rows.data);
  std::vector<double> sum(static_cast<std::size_t>(columns));
  for (std::size_t t = 0; t < numbers.size(); ++t) {
    const Index first = offsets[t], end = pooling_ == Pooling::mean ? offsets[t + 1] : first + 1;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (Index row = first; row < end; ++row)
      for (Index c = 0; c < columns; ++c) sum[static_cast<std::size_t>(c)] += x[row * columns + c];
    double square = 0;
    for (double& s : sum) s /= static_cast<double>(end - first), square += s * s;
    const double length = options_.normalized ? std::max(std::sqrt(square), 1e-12) : 1.0;
    auto* to = static_cast<float*>(out.data) + numbers[t] * columns;
    for (Index c = 0; c < columns; ++c) to[c] = static_cast<float>(sum[static_cast<std::size_t>(c)] / length);
  }
}

Tensor TextEncoder::embed(std::span<const std::string> texts, Context& ctx, StepMemory& memory,
                          const std::function<void(Call&)>& before) const {
  const auto count = static_cast<Index>(texts.size());
  Tensor out(DType::f32, {count, model_dim()});
  std::vector<Encoding> encodings;
  for (const std::string& t : texts)
    encodings.push_back(tokenizer_->encode(t, {.around = true, .most = max_tokens_}));
  const auto tokens = [&](Index i) {
    return static_cast<Index>(encodings[static_cast<std::size_t>(i)].ids.size());
  };
  // Neighbours of one length share the work of attention's tiles.
  std::vector<Index> order(texts.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return tokens(a) < tokens(b); });
  std::vector<TokenId> ids;
  std::vector<Index> offsets;
  for (std::size_t first = 0, end = 0; first < order.size(); first = end) {
    ids.clear(), offsets.assign(1, 0);
    while (end < order.size() &&
           (end == first || offsets.back() + tokens(order[end]) <= options_.batch_tokens)) {
      const Encoding& e = encodings[static_cast<std::size_t>(order[end++])];
      ids.insert(ids.end(), e.ids.begin(), e.ids.end());
      offsets.push_back(static_cast<Index>(ids.size()));
    }
    memory.reset();
    Call call{.ctx = ctx, .memory = memory};
    if (before) before(call);
    const AnyView rows =
        forward_abroad(*model_,
                       {.ids = AnyView::packed(ids.data(), DType::i32, {static_cast<Index>(ids.size())}),
                        .sequences = {.offsets = AnyView::packed(offsets.data(), DType::i64,
                                                                 {static_cast<Index>(offsets.size())})}},
                       call, nullptr);
    pool(rows, std::span(order).subspan(first, end - first), offsets, out.view());
  }
  return out;
}

}  // namespace headwise
