// Steps of models on CUDA device 0 behind plain functions, so that one process can time them and torch's in
// turns: gpu_steps.py.
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/ops/device/params.h"
#include "headwise/train/next_token.h"

namespace {

using namespace headwise;

constexpr Device kThere = Device::cuda(0);
constexpr std::string_view kAll[] = {""};
std::string said;

/// An encoder of `depth` blocks behind an embedding, forward and backward, with f32 gradients.
struct Rows {
  Rows(Index batch, Index tokens, Index dim, Index feed, Index depth, Index heads, DType dtype)
      : params(dtype, 1),
        model(params, {.kind = ModelKind::encoder,
                       .vocabulary = 1000,
                       .model_dim = dim,
                       .feed_dim = feed,
                       .depth = depth,
                       .heads = text("mha:heads=", heads),
                       .positions = Positions::none,
                       .max_tokens = tokens,
                       .feed = FeedKind::gelu}) {
    moved = DeviceParams(params, kAll, kThere, ctx);
    Index numbers = 0;
    for (const Param& p : params.all()) numbers += (p.value.count() + 63) / 64 * 64;
    sums = DeviceTensor(DType::f32, {numbers}, kThere, ctx);
    auto* at = static_cast<float*>(sums.view().data);
    for (Param& p : params.all()) {
      p.grad = p.value;
      p.grad.data = at, p.grad.dtype = DType::f32;
      at += (p.value.count() + 63) / 64 * 64;
    }
    for (Index i = 0; i < batch * tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 7919 % 1000));
    in = {.ids = AnyView::packed(ids.data(), DType::i32, {batch * tokens}),
          .sequences = {.batch = batch, .tokens = tokens}};
    dy = DeviceTensor(dtype, {batch * tokens, dim}, kThere, ctx);
  }
  void step() {
    memory.reset();
    clear_bytes(sums.view(), ctx);
    Call call{.ctx = ctx, .memory = memory, .training = true};
    Transformer::Saved saved;
    model.forward(in, call, &saved);
    model.backward(dy.view(), call, saved);
  }
  Context ctx;
  StepMemory memory{kThere};
  ParamSet params;
  Transformer model;
  DeviceParams moved;
  DeviceTensor sums, dy;
  std::vector<std::int32_t> ids;
  TransformerInput in;
};

/// A decoder that learns the next token in bf16 with f32 masters: the Trainer's whole step, AdamW and
/// clipping included, over fresh ids.
struct Decoder {
  Decoder(Index batch_, Index tokens_, Index vocabulary_, Index dim, Index depth, Index heads, DType dtype)
      : batch(batch_),
        tokens(tokens_),
        vocabulary(vocabulary_),
        params(dtype, 1),
        model(params, {.kind = ModelKind::decoder,
                       .vocabulary = vocabulary,
                       .model_dim = dim,
                       .feed_dim = 4 * dim,
                       .depth = depth,
                       .heads = text("mha:heads=", heads),
                       .positions = Positions::learned,
                       .max_tokens = tokens,
                       .feed = FeedKind::gelu_tanh}) {
    if (dtype != DType::f32) masters.emplace(params);
    optimizer.emplace(masters ? masters->params() : params,
                      AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1, .decay = Decay::matrices});
    optimizer->to(kThere, ctx, masters ? &params : nullptr);
    next.emplace(
        model, tokens,
        [this](Index example, std::span<std::int32_t> in, std::span<std::int32_t> out) {
          auto x = static_cast<std::uint64_t>(example) * 0x9e3779b97f4a7c15u + ++drawn;
          for (std::size_t i = 0; i < in.size(); ++i) {
            in[i] = static_cast<std::int32_t>((x >> 33) % static_cast<std::uint64_t>(vocabulary));
            x = x * 6364136223846793005u + 1442695040888963407u;
            out[i] = static_cast<std::int32_t>((x >> 33) % static_cast<std::uint64_t>(vocabulary));
          }
        },
        ctx);
  }
  double steps(Index count) {
    Trainer trainer(*optimizer, 1 << 20,
                    {.steps = count, .micro_rows = batch, .rate = Schedule::constant(3e-4), .clip = 1}, ctx,
                    masters ? &*masters : nullptr);
    return trainer.run([&](const MicroBatch& m) { return next->learn(m); }).loss;
  }
  Index batch, tokens, vocabulary;
  std::uint64_t drawn = 0;
  Context ctx;
  ParamSet params;
  Transformer model;
  std::optional<MasterWeights> masters;
  std::optional<Optimizer> optimizer;
  std::optional<NextToken> next;
};

template <class F>
int guarded(F&& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    said = e.what();
    return 1;
  }
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) const char* steps_said() { return said.c_str(); }
__attribute__((visibility("default"))) void* rows_make(long batch, long tokens, long dim, long feed,
                                                       long depth, long heads, int bf16) {
  void* made = nullptr;
  guarded([&] { made = new Rows(batch, tokens, dim, feed, depth, heads, bf16 ? DType::bf16 : DType::f32); });
  return made;
}
__attribute__((visibility("default"))) int rows_step(void* rows) {
  return guarded([&] { static_cast<Rows*>(rows)->step(); });
}
__attribute__((visibility("default"))) void* decoder_make(long batch, long tokens, long vocabulary, long dim,
                                                          long depth, long heads, int bf16) {
  void* made = nullptr;
  guarded([&] {
    made = new Decoder(batch, tokens, vocabulary, dim, depth, heads, bf16 ? DType::bf16 : DType::f32);
  });
  return made;
}
/// The loss of the last step; NaN: it failed.
__attribute__((visibility("default"))) double decoder_steps(void* decoder, long count) {
  double loss = NAN;
  guarded([&] { loss = static_cast<Decoder*>(decoder)->steps(count); });
  return loss;
}
__attribute__((visibility("default"))) void decoder_free(void* decoder) {
  delete static_cast<Decoder*>(decoder);
}
__attribute__((visibility("default"))) void rows_free(void* rows) { delete static_cast<Rows*>(rows); }
}
