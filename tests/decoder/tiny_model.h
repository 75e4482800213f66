// TinySource: a decoder of any configuration with random weights, and its logits by plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/decoder/files/source.h"

namespace headwise {

/// Weights drawn once, by name and size; the same seed gives the same model.
class TinySource final : public DecoderSource {
 public:
  explicit TinySource(DecoderConfig config, std::uint64_t seed = 1) : seed_(seed) {
    config_ = std::move(config);
    config_.windows.resize(static_cast<std::size_t>(config_.layers), 0);
    config_.check("tiny");
  }
  void check(const std::string& name, Index rows, Index columns) override {
    auto& w = weights_[name];
    if (!w.empty()) return;
    const bool vector = rows == 0;
    const std::uint64_t own = seed_ * 1'000'003 + std::hash<std::string>{}(name);
    w.resize(static_cast<std::size_t>(columns * (vector ? 1 : rows)));
    const bool norm = vector && name.ends_with("weight");
    const double spread = vector ? 0.1 : 1.5 / std::sqrt(static_cast<double>(columns));
    const double middle = norm && config_.norm_weight == WeightForm::plain ? 1.0 : 0.0;
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i] = static_cast<float>(middle + spread * normal_at(own, static_cast<Index>(i)));
  }
  void read(const std::string& name, Index, Index, float* to) override {
    const auto& w = weights_.at(name);
    std::copy(w.begin(), w.end(), to);
  }
  void check_nothing_left() const override {}

 private:
  std::uint64_t seed_;
  std::map<std::string, std::vector<float>> weights_;
};

/// The formulas, one after the other, with no cache: logits of every position.
class PlainForward {
 public:
  explicit PlainForward(DecoderSource& source) : source_(source), c_(source.config()) {}

  std::vector<std::vector<double>> logits(std::span<const TokenId> tokens) {
    using Rows = std::vector<std::vector<double>>;
    const Index d = c_.model_dim;
    Rows x;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto& table = weight("embed", c_.vocabulary, d);
      x.emplace_back();
      for (Index i = 0; i < d; ++i) {
        x[t].push_back(c_.embed_scale * table[static_cast<std::size_t>(tokens[t] * d + i)]);
        if (c_.learned_positions)
          x[t].back() += weight("positions", c_.positions,
                                d)[t * static_cast<std::size_t>(d) + static_cast<std::size_t>(i)];
      }
    }
    for (Index layer = 0; layer < c_.layers; ++layer) {
      const std::string at = text("layers.", layer, ".");
      Rows q, k, v;
      for (std::size_t t = 0; t < x.size(); ++t) {
        const auto n = norm(x[t], at + "norm_1");
        q.push_back(product(n, at + "q", c_.heads * c_.head_dim, c_.qkv_bias));
        k.push_back(product(n, at + "k", c_.kv_heads * c_.head_dim, c_.qkv_bias));
        v.push_back(product(n, at + "v", c_.kv_heads * c_.head_dim, c_.qkv_bias));
        prepare(q[t], at + "q_norm", layer, static_cast<Index>(t));
        prepare(k[t], at + "k_norm", layer, static_cast<Index>(t));
      }
      own_weights.emplace_back();
      for (std::size_t t = 0; t < x.size(); ++t) {
        auto y = product(attend(q[t], k, v, layer, t), at + "o", d, c_.out_bias);
        if (c_.norms_behind) y = norm(y, at + "behind_1");
        for (std::size_t i = 0; i < y.size(); ++i) x[t][i] += y[i];
      }
      if (c_.cross) cross(x, at);
      for (auto& row : x) {
        const auto n = norm(row, at + "norm_2");
        auto h = product(n, at + "up", c_.feed_dim, c_.feed_bias);
        if (c_.gated) {
          const auto g = product(n, at + "gate", c_.feed_dim, c_.feed_bias);
          for (std::size_t i = 0; i < h.size(); ++i) h[i] *= act(g[i]);
        } else {
          for (double& a : h) a = act(a);
        }
        auto y = product(h, at + "down", d, c_.feed_bias);
        if (c_.norms_behind) y = norm(y, at + "behind_2");
        for (std::size_t i = 0; i < y.size(); ++i) row[i] += y[i];
      }
    }
    Rows out;
    for (const auto& row : x) {
      const auto n = norm(row, "norm");
      out.push_back(times(n, weight(c_.tied ? "embed" : "head", c_.vocabulary, d), c_.vocabulary));
      if (c_.logit_softcap > 0)
        for (double& l : out.back()) l = c_.logit_softcap * std::tanh(l / c_.logit_softcap);
    }
    return out;
  }

  /// What a model with cross-attention looks at, and the weights its heads gave: [layers][tokens][heads
  /// states].
  std::vector<std::vector<double>> states;
  std::vector<std::vector<std::vector<double>>> cross_weights;
  /// Of its own keys, those up to the row's: [layers][tokens][heads][keys].
  std::vector<std::vector<std::vector<std::vector<double>>>> own_weights;

 private:
  using Row = std::vector<double>;
  void cross(std::vector<Row>& x, const std::string& at) {
    const Index dim = c_.head_dim, all = c_.heads * dim;
    std::vector<Row> k, v;
    for (const Row& s : states) {
      k.push_back(product(s, at + "cross_k", all, c_.qkv_bias));
      v.push_back(product(s, at + "cross_v", all, c_.qkv_bias));
    }
    std::vector<Row>& kept = cross_weights.emplace_back();
    for (Row& row : x) {
      const Row q = product(norm(row, at + "cross_norm"), at + "cross_q", all, c_.qkv_bias);
      Row out(static_cast<std::size_t>(all), 0), weights;
      for (Index h = 0; h < c_.heads; ++h) {
        Row w;
        double sum = 0;
        for (const Row& key : k) {
          double dot = 0;
          for (Index i = h * dim; i < (h + 1) * dim; ++i)
            dot += q[static_cast<std::size_t>(i)] * key[static_cast<std::size_t>(i)];
          w.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
          sum += w.back();
        }
        for (std::size_t j = 0; j < k.size(); ++j) {
          weights.push_back(w[j] / sum);
          for (Index i = h * dim; i < (h + 1) * dim; ++i)
            out[static_cast<std::size_t>(i)] += w[j] / sum * v[j][static_cast<std::size_t>(i)];
        }
      }
      kept.push_back(weights);
      const Row y = product(out, at + "cross_o", c_.model_dim, c_.out_bias);
      for (std::size_t i = 0; i < y.size(); ++i) row[i] += y[i];
    }
  }
  const std::vector<float>& weight(const std::string& name, Index rows, Index columns) {
    auto& w = held_[name];
    if (w.empty()) {
      source_.check(name, rows, columns);
      w.resize(static_cast<std::size_t>(columns * (rows > 0 ? rows : 1)));
      source_.read(name, rows, columns, w.data());
    }
    return w;
  }
  static Row times(const Row& x, const std::vector<float>& w, Index rows) {
    Row y(static_cast<std::size_t>(rows), 0);
    for (std::size_t r = 0; r < y.size(); ++r)
      for (std::size_t i = 0; i < x.size(); ++i) y[r] += static_cast<double>(w[r * x.size() + i]) * x[i];
    return y;
  }
  Row product(const Row& x, const std::string& name, Index rows, bool bias) {
    Row y = times(x, weight(name + ".weight", rows, static_cast<Index>(x.size())), rows);
    if (bias)
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += weight(name + ".bias", 0, rows)[i];
    return y;
  }
  double one(double w) const { return c_.norm_weight == WeightForm::one_plus ? 1 + w : w; }
  Row norm(const Row& x, const std::string& name) {
    const auto n = static_cast<Index>(x.size());
    double mean = 0, square = 0;
    if (c_.norm == NormKind::layer)
      for (const double a : x) mean += a / static_cast<double>(n);
    for (const double a : x) square += (a - mean) * (a - mean) / static_cast<double>(n);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back((x[i] - mean) / std::sqrt(square + c_.eps) * one(weight(name + ".weight", 0, n)[i]));
      if (c_.norm == NormKind::layer) y.back() += weight(name + ".bias", 0, n)[i];
    }
    return y;
  }
  double act(double x) const {
    if (c_.activation == Activation::silu) return x / (1 + std::exp(-x));
    if (c_.activation == Activation::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  /// Norm of each head, then its turn by position.
  void prepare(Row& row, const std::string& name, Index layer, Index position) {
    const Index dim = c_.head_dim;
    for (std::size_t head = 0; head < row.size(); head += static_cast<std::size_t>(dim)) {
      double* x = row.data() + head;
      if (c_.head_norms) {
        double square = 0;
        for (Index i = 0; i < dim; ++i) square += x[i] * x[i] / static_cast<double>(dim);
        for (Index i = 0; i < dim; ++i)
          x[i] *=
              one(weight(name + ".weight", 0, dim)[static_cast<std::size_t>(i)]) / std::sqrt(square + c_.eps);
      }
      if (c_.learned_positions) continue;
      const RopeOptions& o = c_.window(layer) > 0 ? c_.sliding_rope : c_.rope;
      const RopeRule rule(o, dim);
      for (Index i = 0; i < dim / 2; ++i) {
        const Index a = o.kind == RopeKind::half ? i : 2 * i,
                    b = o.kind == RopeKind::half ? i + dim / 2 : 2 * i + 1;
        const double angle = static_cast<double>(position) * rule.frequency(i), u = x[a], w = x[b];
        x[a] = (u * std::cos(angle) - w * std::sin(angle)) * rule.attention_factor;
        x[b] = (w * std::cos(angle) + u * std::sin(angle)) * rule.attention_factor;
      }
    }
  }
  Row attend(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v, Index layer, std::size_t t) {
    const Index dim = c_.head_dim, group = c_.heads / c_.kv_heads, window = c_.window(layer);
    const double scale = c_.scale > 0 ? c_.scale : 1 / std::sqrt(static_cast<double>(dim));
    Row out(q.size(), 0);
    std::vector<Row>& kept = own_weights.back().emplace_back();
    for (Index h = 0; h < c_.heads; ++h) {
      Row s, &weights = kept.emplace_back(t + 1, 0.0);
      double sum = 0;
      const std::size_t mine = static_cast<std::size_t>(h * dim),
                        theirs = static_cast<std::size_t>(h / group * dim);
      const std::size_t first =
          window > 0 && static_cast<Index>(t) >= window ? t + 1 - static_cast<std::size_t>(window) : 0;
      for (std::size_t j = first; j <= t; ++j) {
        double dot = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) dot += q[mine + i] * k[j][theirs + i];
        dot *= scale;
        if (c_.attention_softcap > 0) dot = c_.attention_softcap * std::tanh(dot / c_.attention_softcap);
        s.push_back(std::exp(dot));
        sum += s.back();
      }
      for (std::size_t j = first; j <= t; ++j) {
        weights[j] = s[j - first] / sum;
        for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i)
          out[mine + i] += weights[j] * v[j][theirs + i];
      }
    }
    return out;
  }

  DecoderSource& source_;
  const DecoderConfig& c_;
  std::map<std::string, std::vector<float>> held_;
};

/// Small sizes, heads that are no multiple of a vector's width.
inline DecoderConfig tiny_config() {
  DecoderConfig c;
  c.family = "llama";
  c.layers = 2, c.model_dim = 24, c.feed_dim = 40, c.heads = 4, c.kv_heads = 2, c.head_dim = 6;
  c.vocabulary = 50, c.positions = 128;
  return c;
}

}  // namespace headwise
