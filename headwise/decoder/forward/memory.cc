#include "headwise/decoder/forward/memory.h"

#include <atomic>
#include <cmath>

namespace headwise {
namespace {

constexpr std::string_view kOp = "decoder memory";
constexpr Index kMostTokens = Index{1} << 24;

}  // namespace

DecoderMemory::DecoderMemory(const Decoder& model, const InputView& states, Context& ctx)
    : tokens_(states.size[0]), heads_(model.config().kv_heads), head_dim_(model.config().head_dim) {
  static std::atomic<std::int64_t> made{0};
  const DecoderConfig& c = model.config();
  require(c.cross, ErrorKind::bad_argument, kOp, "a ", c.family,
          " model has no cross-attention; it takes no states of an encoder");
  require(states.dtype == DType::f32 && states.rank == 2 && states.size[1] == c.model_dim &&
              states.size[0] >= 1 && states.size[0] <= kMostTokens && states.on_cpu(),
          ErrorKind::bad_shape, kOp, "got states ", states, "; f32 [tokens ", c.model_dim,
          "] on the CPU are needed");
  std::vector<float> rows(static_cast<std::size_t>(tokens_ * c.model_dim));
  for (Index t = 0; t < tokens_; ++t)
    for (Index i = 0; i < c.model_dim; ++i) {
      const float x = static_cast<const float*>(states.data)[t * states.step[0] + i * states.step[1]];
      require(std::isfinite(x), ErrorKind::bad_argument, kOp, "number ", i, " of state ", t,
              " is not finite");
      rows[static_cast<std::size_t>(t * c.model_dim + i)] = x;
    }
  const Index columns = 2 * heads_ * head_dim_;
  for (const DecoderLayer& layer : model.weights_.layers) {
    Tensor& out = layers_.emplace_back(DType::f32, std::initializer_list<Index>{tokens_, columns});
    const ProductWeights& w = layer.cross_kv;
    const float* bias = w.bias.view().given() ? w.bias.values<const float>().data() : nullptr;
    Index column = 0;
    for (const StoredMatrix& m : w.matrices) {
      m.multiply({.rows = tokens_,
                  .x = {rows.data(), c.model_dim},
                  .out = {out.values<float>().data() + column, columns},
                  .bias = bias != nullptr ? bias + column : nullptr},
                 ctx);
      column += m.out();
    }
  }
  number_ = ++made;
}

ConstView DecoderMemory::part(Index layer, Index which) const {
  const Tensor& rows = layers_[static_cast<std::size_t>(layer)];
  const Index width = heads_ * head_dim_;
  ConstView v = ConstView::packed(rows.values<const float>().data() + which * width, DType::f32,
                                  {1, tokens_, heads_, head_dim_});
  v.step[0] = tokens_ * 2 * width, v.step[1] = 2 * width;
  return v;
}

}  // namespace headwise
