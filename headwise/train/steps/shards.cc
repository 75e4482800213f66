#include "headwise/train/steps/shards.h"

#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/train/steps/param_blocks.h"

namespace headwise {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, Index bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

Shards::Shards(const ParamSet& params, const Communicator& team) : team_(team), dtype_(params.dtype()) {
  Index numbers = 0;
  for (const Param& p : params.all()) {
    const Index count = p.rate > 0 ? p.value.count() : 0;
    places_.push_back({numbers, count});
    numbers += count;
  }
  const ParamBlocks blocks(params);
  for (int r = 0; r < team.ranks(); ++r) {
    const Slice own = slice_of(blocks.count(), r, team.ranks());
    const Index end = own.begin + own.size;
    block_ends_.push_back(end);
    Index last = numbers;
    if (end < blocks.count()) {
      const ParamBlock next = blocks.at(end);
      last = places_[static_cast<std::size_t>(next.param)].begin + next.begin;
    }
    if (r == team.rank()) {
      blocks_ = own;
      numbers_.begin = ends_.empty() ? 0 : ends_.back();
      numbers_.size = last - numbers_.begin;
    }
    ends_.push_back(last);
  }
  flat_.resize(static_cast<std::size_t>(numbers * size_of(dtype_)));
}

Slice Shards::own_of(std::size_t param) const {
  const Place& p = places_[param];
  const Index begin = max_of(p.begin, numbers_.begin),
              end = min_of(p.begin + p.count, numbers_.begin + numbers_.size);
  return end > begin ? Slice{begin - p.begin, end - begin} : Slice{0, 0};
}

void Shards::sum_grads(ParamSet& params, Context& ctx) {
  const Index width = size_of(dtype_);
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].count > 0)
      copy_bytes(flat_.data() + places_[i].begin * width,
                 static_cast<const std::byte*>(params.all()[i].grad.data), places_[i].count * width);
  std::byte* mine = flat_.data() + numbers_.begin * width;
  team_.sum_pieces(AnyView::packed(flat_.data(), dtype_, {ends_.back()}), ends_,
                   AnyView::packed(mine, dtype_, {numbers_.size}), ctx, "gradients");
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (const Slice own = own_of(i); own.size > 0)
      copy_bytes(static_cast<std::byte*>(params.all()[i].grad.data) + own.begin * width,
                 flat_.data() + (places_[i].begin + own.begin) * width, own.size * width);
}

double Shards::grad_norm(const ParamSet& params, Context& ctx) const {
  const FloatEnv env;
  const ParamBlocks blocks(params);
  const Index width = size_of(dtype_);
  std::vector<double> sums(static_cast<std::size_t>(blocks.count()));
  ctx.pool().parallel_for(blocks_.size, [&](Index i, int) noexcept {
    const ParamBlock b = blocks.at(blocks_.begin + i);
    sums[static_cast<std::size_t>(blocks_.begin + i)] =
        sum_of_squares(dtype_, static_cast<const std::byte*>(b.of->grad.data) + b.begin * width, b.size);
  });
  team_.gather_pieces(AnyView::packed(sums.data(), DType::f64, {blocks.count()}), block_ends_, "norms");
  double total = 0;
  for (const double s : sums) total += s;
  return std::sqrt(total);
}

void Shards::gather(const std::vector<const std::byte*>& own, const std::vector<std::byte*>& whole,
                    std::string_view what) {
  const Index width = size_of(dtype_);
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (const Slice s = own_of(i); s.size > 0)
      copy_bytes(flat_.data() + (places_[i].begin + s.begin) * width, own[i], s.size * width);
  team_.gather_pieces(AnyView::packed(flat_.data(), dtype_, {ends_.back()}), ends_, what);
  for (std::size_t i = 0; i < places_.size(); ++i)
    copy_bytes(whole[i], flat_.data() + places_[i].begin * width, places_[i].count * width);
}

void Shards::gather_values(ParamSet& params) {
  std::vector<const std::byte*> own;
  std::vector<std::byte*> whole;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    auto* value = static_cast<std::byte*>(params.all()[i].value.data);
    own.push_back(value + own_of(i).begin * size_of(dtype_)), whole.push_back(value);
  }
  gather(own, whole, "weights");
}

}  // namespace headwise
