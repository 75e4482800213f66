#include "headwise/lab/depth/rollout.h"

#include <algorithm>
#include <limits>

#include "headwise/base/error.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Nodes are tokens of levels: level `layers` behind the last layer, level 0 the input. Shortest paths first,
/// one after another (Edmonds and Karp).
class Network {
 public:
  explicit Network(const std::vector<SmallMatrix>& layers)
      : forth_(layers), back_(layers), n_(layers[0].rows) {
    for (SmallMatrix& m : back_) std::fill(m.values.begin(), m.values.end(), 0.0);
  }
  double most(Index from, Index to) {
    double flow = 0;
    while (find(from, to)) flow += push(from, to);
    return flow;
  }

 private:
  Index levels() const { return static_cast<Index>(forth_.size()); }
  Index node(Index level, Index token) const { return level * n_ + token; }
  /// Room between two nodes of neighbouring levels.
  double& room(Index from, Index to) {
    const Index a = from / n_, b = to / n_;
    return a > b ? forth_[at(b)].at(from % n_, to % n_) : back_[at(a)].at(from % n_, to % n_);
  }
  bool find(Index from, Index to) {
    constexpr double kLeast = 1e-12;
    const Index first = node(levels(), from), last = node(0, to);
    before_.assign(at((levels() + 1) * n_), -1);
    before_[at(first)] = first;
    queue_.assign(1, first);
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      const Index here = queue_[head], level = here / n_;
      for (const Index next : {level - 1, level + 1}) {
        if (next < 0 || next > levels()) continue;
        const double* const rooms =
            (next < level ? forth_[at(next)] : back_[at(level)]).values.data() + here % n_ * n_;
        for (Index t = 0; t < n_; ++t) {
          const Index there = node(next, t);
          if (rooms[t] <= kLeast || before_[at(there)] >= 0) continue;
          before_[at(there)] = here;
          if (there == last) return true;
          queue_.push_back(there);
        }
      }
    }
    return false;
  }
  double push(Index from, Index to) {
    const Index first = node(levels(), from);
    double least = std::numeric_limits<double>::infinity();
    for (Index i = node(0, to); i != first; i = before_[at(i)])
      least = std::min(least, room(before_[at(i)], i));
    for (Index i = node(0, to); i != first; i = before_[at(i)])
      room(before_[at(i)], i) -= least, room(i, before_[at(i)]) += least;
    return least;
  }

  std::vector<SmallMatrix> forth_, back_;
  Index n_;
  std::vector<Index> before_, queue_;
};

}  // namespace

SmallMatrix with_residual(const float* maps, Index heads, Index tokens) {
  SmallMatrix m(tokens, tokens);
  for (Index i = 0; i < tokens; ++i) {
    for (Index j = 0; j < tokens; ++j) {
      double sum = 0;
      for (Index h = 0; h < heads; ++h) sum += static_cast<double>(maps[(h * tokens + i) * tokens + j]);
      m.at(i, j) = 0.5 * sum / static_cast<double>(heads);
    }
    m.at(i, i) += 0.5;
  }
  return m;
}

SmallMatrix rolled_out(const std::vector<SmallMatrix>& layers) {
  require(!layers.empty(), ErrorKind::bad_argument, "rollout", "there is no layer; give one or more");
  SmallMatrix all = layers[0];
  for (std::size_t i = 1; i < layers.size(); ++i) all = product(layers[i], all);
  return all;
}

std::vector<double> flow_from(const std::vector<SmallMatrix>& layers, Index token) {
  require(!layers.empty(), ErrorKind::bad_argument, "flow", "there is no layer; give one or more");
  const Index n = layers[0].rows;
  require(token >= 0 && token < n, ErrorKind::bad_argument, "flow", "token ", token, " is outside a text of ",
          n, " tokens; count from 0");
  std::vector<double> all;
  double sum = 0;
  for (Index j = 0; j < n; ++j) sum += all.emplace_back(Network(layers).most(token, j));
  for (double& x : all) x /= sum > 0 ? sum : 1;
  return all;
}

}  // namespace headwise
