#include "headwise/lab/matrix/merge.h"

#include <algorithm>
#include <functional>

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

double get(const ConstView& v, Index i) { return load_double(v.data, v.dtype, i); }

using Groups = std::vector<std::vector<Index>>;

HeadMerge merge_of(const HeadGram& k, const HeadGram& v, Groups groups,
                   const std::function<Alignment(const HeadGram&, const std::vector<Index>&, bool)>& how) {
  HeadMerge m;
  double keys = 0, values = 0, all_keys = 0, all_values = 0;
  for (const auto& group : groups) {
    m.keys.push_back(how(k, group, true)), m.values.push_back(how(v, group, false));
    keys += m.keys.back().error, values += m.values.back().error;
    for (const Index u : group) all_keys += k.square(u), all_values += v.square(u);
  }
  m.figures = {all_keys > 0 ? keys / all_keys : 0, all_values > 0 ? values / all_values : 0, groups};
  m.groups = std::move(groups);
  return m;
}

/// Rows [dim columns] of head h turned and scaled: factor * turn^T rows, added to rows `to` of `out`.
struct Rows {
  const ConstView& from;
  Index h;
  const SmallMatrix& turn;
  double factor;
};
void add_turned(const Rows& r, Tensor& out, Index to) {
  const Index dim = r.turn.rows, columns = r.from.rank == 1 ? 1 : r.from.size[1];
  const AnyView& o = out.view();
  for (Index i = 0; i < dim; ++i)
    for (Index c = 0; c < columns; ++c) {
      double sum = get(o, (to * dim + i) * columns + c);
      for (Index j = 0; j < dim; ++j)
        sum += r.factor * r.turn.at(j, i) * get(r.from, (r.h * dim + j) * columns + c);
      store_double(o.data, o.dtype, (to * dim + i) * columns + c, sum);
    }
}

Tensor like(const ConstView& v, Index rows) {
  return v.rank == 1 ? Tensor(DType::f64, {rows}) : Tensor(DType::f64, {rows, v.size[1]});
}

}  // namespace

std::vector<std::vector<Index>> neighbours(Index units, Index kv_heads) {
  Groups all(at(kv_heads));
  for (Index u = 0; u < units; ++u) all[at(u * kv_heads / units)].push_back(u);
  return all;
}

HeadMerge merge_heads(const HeadGram& k, const HeadGram& v, Index kv_heads, const MergeRules& rules) {
  const Groups plain = neighbours(k.heads, kv_heads);
  if (rules.by != MergeBy::aligned)
    return merge_of(k, v, plain, [&](const HeadGram& g, const std::vector<Index>& group, bool) {
      return rules.by == MergeBy::mean ? mean_of(g, group) : first_of(g, group);
    });
  const auto how = [&](const HeadGram& g, const std::vector<Index>& group, bool keys) {
    return aligned(g, group, keys ? rules.keys : rules.values);
  };
  SmallMatrix distance(k.heads, k.heads);
  double all_keys = 0, all_values = 0;
  for (Index u = 0; u < k.heads; ++u) all_keys += k.square(u), all_values += v.square(u);
  for (Index x = 0; x < k.heads; ++x)
    for (Index y = x + 1; y < k.heads; ++y)
      distance.at(x, y) = distance.at(y, x) =
          distance_aligned(k, x, y, rules.keys) / std::max(all_keys, 1e-300) +
          distance_aligned(v, x, y, rules.values) / std::max(all_values, 1e-300);
  HeadMerge near = merge_of(k, v, plain, how), alike = merge_of(k, v, grouped_by(distance, kv_heads), how);
  return alike.figures.total() < near.figures.total() ? alike : near;
}

std::vector<Index> merged_order(const HeadMerge& m, Index group) {
  std::vector<Index> all;
  for (const auto& units : m.groups)
    for (const Index u : units)
      for (Index i = 0; i < group; ++i) all.push_back(u * group + i);
  return all;
}

Tensor merged_queries(const ConstView& q, const HeadMerge& m, Index group) {
  Tensor to = like(q, q.size[0]);
  Index slot = 0;
  for (std::size_t g = 0; g < m.groups.size(); ++g)
    for (std::size_t u = 0; u < m.groups[g].size(); ++u)
      for (Index i = 0; i < group; ++i)
        add_turned({q, m.groups[g][u] * group + i, m.keys[g].turn[u], m.keys[g].size[u]}, to, slot++);
  return to;
}

Tensor merged_shared(const ConstView& kv, const HeadMerge& m, bool keys) {
  const std::vector<Alignment>& all = keys ? m.keys : m.values;
  Tensor to = like(kv, std::ssize(all) * all[0].turn[0].rows);
  for (std::size_t g = 0; g < all.size(); ++g)
    for (std::size_t u = 0; u < m.groups[g].size(); ++u)
      if (all[g].share[u] != 0)
        add_turned({kv, m.groups[g][u], all[g].turn[u], all[g].share[u]}, to, static_cast<Index>(g));
  return to;
}

Tensor merged_out(const ConstView& w, const HeadMerge& m, Index group) {
  Tensor to(DType::f64, {w.size[0], w.size[1]});
  Index slot = 0;
  for (std::size_t g = 0; g < m.groups.size(); ++g)
    for (std::size_t u = 0; u < m.groups[g].size(); ++u)
      for (Index i = 0; i < group; ++i, ++slot) {
        const SmallMatrix& turn = m.values[g].turn[u];
        const Index dim = turn.rows, from = (m.groups[g][u] * group + i) * dim;
        for (Index r = 0; r < w.size[0]; ++r)
          for (Index c = 0; c < dim; ++c) {
            double sum = 0;
            for (Index j = 0; j < dim; ++j) sum += get(w, r * w.size[1] + from + j) * turn.at(j, c);
            to.values<double>()[at(r * w.size[1] + slot * dim + c)] = m.values[g].size[u] * sum;
          }
      }
  return to;
}

}  // namespace headwise
