#include "headwise/layers/basic/packed_weights.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "headwise/base/context.h"
#include "headwise/ops/projection/projection.h"

namespace headwise {

struct PackedWeights::Kept {
  using Key = std::tuple<const void*, Index, Index, Index, Index, DType, DType>;
  mutable std::mutex lock;
  std::string kernels;
  std::map<Key, PackedMatrix> weights;  // its places stay where they are
};

PackedWeights::PackedWeights() : kept_(std::make_unique<Kept>()) {}
PackedWeights::~PackedWeights() = default;

const PackedMatrix* PackedWeights::find(const AnyView& weight, DType rows, Context& ctx) {
  if (!weight.given() || weight.rank != 2) return nullptr;
  if (ctx.device() && ctx.device()->kind != Device::Kind::cpu) return nullptr;
  const std::lock_guard hold(kept_->lock);
  if (kept_->weights.empty()) kept_->kernels = ctx.kernels();
  if (kept_->kernels != ctx.kernels()) return nullptr;
  const Kept::Key key{
      weight.data, weight.size[0], weight.size[1], weight.step[0], weight.step[1], weight.dtype, rows};
  auto there = kept_->weights.find(key);
  if (there == kept_->weights.end())
    there = kept_->weights.emplace(key, pack_matrix(weight, rows, ctx)).first;
  return there->second.bytes() > 0 ? &there->second : nullptr;
}

std::size_t PackedWeights::bytes() const {
  const std::lock_guard hold(kept_->lock);
  std::size_t sum = 0;
  for (const auto& [key, weight] : kept_->weights) sum += weight.bytes();
  return sum;
}

std::size_t PackedWeights::count() const {
  const std::lock_guard hold(kept_->lock);
  return kept_->weights.size();
}

}  // namespace headwise
