#include "headwise/view/decoder/top_pairs.h"

#include <algorithm>
#include <numeric>

#include "headwise/ops/projection/projection.h"

namespace headwise {
namespace {

constexpr Index kBlock = 128;  // rows multiplied at once

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

bool before(const IndexPair& a, const IndexPair& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.row != b.row ? a.row < b.row : a.column < b.column;
}

/// The largest pairs so far, as a heap whose front is the smallest of them.
class Best {
 public:
  explicit Best(Index most) : most_(at(most)) {}
  void add(const IndexPair& p) {
    if (heap_.size() == most_ && !before(p, heap_.front())) return;
    heap_.push_back(p);
    std::push_heap(heap_.begin(), heap_.end(), before);
    if (heap_.size() <= most_) return;
    std::pop_heap(heap_.begin(), heap_.end(), before);
    heap_.pop_back();
  }
  std::vector<IndexPair> sorted() const {
    std::vector<IndexPair> all = heap_;
    std::sort(all.begin(), all.end(), before);
    return all;
  }

 private:
  std::size_t most_;
  std::vector<IndexPair> heap_;
};

/// Some vectors of a with all of b; `add` takes the place in a, the place in b, and the product.
template <class Add>
void each_product(std::span<const float> a, const std::vector<Index>& some, std::span<const float> b,
                  Index dim, Context& ctx, const Add& add) {
  const Index count = static_cast<Index>(b.size()) / dim;
  std::vector<float> x(at(kBlock * dim)), out(at(kBlock * count));
  for (Index first = 0; first < std::ssize(some); first += kBlock) {
    const Index n = std::min<Index>(kBlock, std::ssize(some) - first);
    for (Index r = 0; r < n; ++r)
      std::copy_n(a.begin() + some[at(first + r)] * dim, dim, x.begin() + r * dim);
    projection({.x = ConstView::packed(x.data(), DType::f32, {n, dim}),
                .weight = ConstView::packed(b.data(), DType::f32, {count, dim}),
                .out = AnyView::packed(out.data(), DType::f32, {n, count})},
               Activation::none, ctx);
    for (Index r = 0; r < n; ++r)
      for (Index c = 0; c < count; ++c) add(some[at(first + r)], c, out[at(r * count + c)]);
  }
}

/// Places of the vectors of a whose products with b have the largest mean square: a^T (b^T b) a.
std::vector<Index> standing_out(std::span<const float> a, std::span<const float> b, Index dim) {
  std::vector<double> gram(at(dim * dim));
  for (std::size_t v = 0; v < b.size(); v += at(dim))
    for (Index i = 0; i < dim; ++i)
      for (Index j = 0; j < dim; ++j)
        gram[at(i * dim + j)] += static_cast<double>(b[v + at(i)]) * b[v + at(j)];
  const Index count = static_cast<Index>(a.size()) / dim;
  std::vector<double> size(at(count));
  for (Index v = 0; v < count; ++v)
    for (Index i = 0; i < dim; ++i) {
      double sum = 0;
      for (Index j = 0; j < dim; ++j) sum += gram[at(i * dim + j)] * a[at(v * dim + j)];
      size[at(v)] += sum * a[at(v * dim + i)];
    }
  std::vector<Index> places(at(count));
  std::iota(places.begin(), places.end(), Index{0});
  const Index most = std::min(kStandOut, count);
  std::partial_sort(places.begin(), places.begin() + most, places.end(), [&](Index x, Index y) {
    return size[at(x)] != size[at(y)] ? size[at(x)] > size[at(y)] : x < y;
  });
  places.resize(at(most));
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace

std::vector<IndexPair> top_pairs(const VectorLists& l, Index most, Context& ctx, Index all_up_to) {
  Best best(most);
  if (l.count <= all_up_to) {
    std::vector<Index> all(at(l.count));
    std::iota(all.begin(), all.end(), Index{0});
    each_product(l.rows, all, l.columns, l.dim, ctx, [&](Index row, Index column, float score) {
      best.add({row, column, score});
    });
    return best.sorted();
  }
  const std::vector<Index> rows = standing_out(l.rows, l.columns, l.dim);
  const std::vector<Index> columns = standing_out(l.columns, l.rows, l.dim);
  each_product(l.rows, rows, l.columns, l.dim, ctx, [&](Index row, Index column, float score) {
    best.add({row, column, score});
  });
  each_product(l.columns, columns, l.rows, l.dim, ctx, [&](Index column, Index row, float score) {
    if (!std::binary_search(rows.begin(), rows.end(), row)) best.add({row, column, score});
  });
  return best.sorted();
}

}  // namespace headwise
