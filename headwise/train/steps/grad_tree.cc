#include "headwise/train/steps/grad_tree.h"

#include <cstring>

#include "headwise/base/context.h"
#include "headwise/train/steps/shards.h"

namespace headwise {
namespace {

constexpr Index kGrain = 1 << 14;

/// to = left + to.
void add_left(const std::byte* left, const AnyView& to, Context& ctx) {
  const auto add = [&]<class T>(Type<T>) {
    const T* a = reinterpret_cast<const T*>(left);
    T* b = static_cast<T*>(to.data);
    ctx.pool().parallel_for(ceil_div(to.count(), kGrain), [&](Index task, int) noexcept {
      for (Index i = task * kGrain; i < min_of(to.count(), (task + 1) * kGrain); ++i) b[i] = a[i] + b[i];
    });
  };
  to.dtype == DType::f64 ? add(Type<double>{}) : add(Type<float>{});
}

}  // namespace

GradTree::GradTree(ParamSet& params, const Communicator* team) : params_(params), team_(team) {
  require(params.dtype() == DType::f32 || params.dtype() == DType::f64, ErrorKind::bad_dtype, "trainer",
          "parameters are ", params.dtype(),
          ", whose gradients are not added over micro-batches; use masters of f32");
  each_grad([&](const AnyView& g, Index) { numbers_ += g.count(); });
}

/// f(gradient, bytes before it), in the order of declaration.
template <class F>
void GradTree::each_grad(F&& f) const {
  Index at = 0;
  for (Param& p : params_.all()) {
    if (!p.grad.given()) continue;
    f(p.grad, at);
    at += static_cast<Index>(p.bytes());
  }
}

void GradTree::add_leaf(bool last, Context& ctx) {
  Node node{.leaves = 1, .bytes = {}};
  while (!open_.empty() && open_.back().leaves == node.leaves) {
    each_grad([&](const AnyView& g, Index at) { add_left(open_.back().bytes.data() + at, g, ctx); });
    spare_.push_back(std::move(open_.back().bytes));
    open_.pop_back();
    node.leaves *= 2;
  }
  if (last) {
    require(open_.empty(), ErrorKind::bad_argument, "trainer",
            "micro-batches of a rank are no power of two; give 1, 2, ", "4, ... to each");
    return;
  }
  if (!spare_.empty()) node.bytes = std::move(spare_.back()), spare_.pop_back();
  node.bytes.resize(static_cast<std::size_t>(numbers_ * size_of(params_.dtype())));
  each_grad([&](const AnyView& g, Index at) {
    if (g.count())
      std::memcpy(node.bytes.data() + at, g.data, static_cast<std::size_t>(g.count() * size_of(g.dtype)));
  });
  open_.push_back(std::move(node));
  params_.zero_grads();
}

void GradTree::finish(Context& ctx, Shards* shards) {
  if (team_ == nullptr || team_->ranks() == 1) return;
  if (shards != nullptr) return shards->sum_grads(params_, ctx);
  std::vector<std::byte> flat;
  if (!spare_.empty()) flat = std::move(spare_.back()), spare_.pop_back();
  flat.resize(static_cast<std::size_t>(numbers_ * size_of(params_.dtype())));
  each_grad([&](const AnyView& g, Index at) {
    if (g.count())
      std::memcpy(flat.data() + at, g.data, static_cast<std::size_t>(g.count() * size_of(g.dtype)));
  });
  const AnyView all = AnyView::packed(flat.data(), params_.dtype(), {numbers_});
  team_->sum(all, all, Order::tree, ctx, "gradients");
  each_grad([&](const AnyView& g, Index at) {
    if (g.count())
      std::memcpy(g.data, flat.data() + at, static_cast<std::size_t>(g.count() * size_of(g.dtype)));
  });
  spare_.push_back(std::move(flat));
}

}  // namespace headwise
