#include "tests/support/fake/fake_steps.h"

#include <cmath>
#include <vector>

namespace headwise::fake {

Status bag(const cuda::BagTask& t, int, void*) {
  const auto root = [&](Index b) {
    return 1 / std::sqrt(static_cast<double>(std::max(1, t.offsets[b + 1] - t.offsets[b])));
  };
  return opened([&] {
    for (Index b = 0; !t.backward && b < t.bags; ++b)
      for (Index c = 0; c < t.columns; ++c) {
        double sum = 0;
        for (Index i = t.offsets[b]; i < t.offsets[b + 1]; ++i) sum += get(t.table, t.rows[i], c);
        put(t.out, b, c, root(b) * sum);
      }
    for (Index r = 0; t.backward && r < t.run_count; ++r)
      for (Index i = t.starts[r]; i < t.starts[r + 1]; ++i)
        for (Index c = 0; c < t.columns; ++c)
          put(t.table, t.runs[r], c,
              get(t.table, t.runs[r], c) + root(t.tokens[i]) * get(t.out, t.tokens[i], c));
  });
}

namespace {

void pool_forward(const cuda::PoolTask& t, Index text, Index o) {
  float* a = t.weights + o * t.pooled;
  const Index begin = t.offsets[text], end = t.offsets[text + 1];
  double sum = 0;
  for (Index i = begin; i < end; ++i) {
    double score = 0;
    for (Index c = 0; t.queries && c < t.columns; ++c)
      score += get(t.x, t.rows[i], c) * get(t.query, o, c) * static_cast<double>(t.scale);
    a[i] = static_cast<float>(std::exp(score));
    sum += static_cast<double>(a[i]);
  }
  for (Index i = begin; i < end; ++i) a[i] = static_cast<float>(static_cast<double>(a[i]) / sum);
  for (Index c = 0; c < t.columns; ++c) {
    double y = 0;
    for (Index i = begin; i < end; ++i) y += static_cast<double>(a[i]) * get(t.x, t.rows[i], c);
    put(t.out, text, o * t.columns + c, y);
  }
}

void pool_backward(const cuda::PoolTask& t, Index text, Index o, std::vector<double>& dx) {
  const float* a = t.weights + o * t.pooled;
  const Index begin = t.offsets[text], end = t.offsets[text + 1];
  std::vector<double> slopes;
  double mean = 0;
  for (Index i = begin; i < end; ++i) {
    double slope = 0;
    for (Index c = 0; c < t.columns; ++c)
      slope += get(t.out, text, o * t.columns + c) * get(t.x, t.rows[i], c);
    slopes.push_back(slope), mean += static_cast<double>(a[i]) * slope;
  }
  for (Index i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i - begin);
    const auto weight = static_cast<double>(a[i]),
               s = t.queries ? static_cast<double>(t.scale) * weight * (slopes[at] - mean) : 0.0;
    for (Index c = 0; c < t.columns; ++c) {
      double& to = dx[at * static_cast<std::size_t>(t.columns) + static_cast<std::size_t>(c)];
      to += weight * get(t.out, text, o * t.columns + c);
      if (!t.queries) continue;
      to += s * get(t.query, o, c);
      if (t.dquery) t.dquery[o * t.columns + c] += static_cast<float>(s * get(t.x, t.rows[i], c));
    }
  }
}

}  // namespace

Status pool(const cuda::PoolTask& t, int, void*) {
  return opened([&] {
    for (Index text = 0; text < t.texts; ++text) {
      const Index begin = t.offsets[text], end = t.offsets[text + 1];
      std::vector<double> dx(static_cast<std::size_t>((end - begin) * t.columns));
      for (Index o = 0; o < t.outputs; ++o)
        if (t.backward)
          pool_backward(t, text, o, dx);
        else
          pool_forward(t, text, o);
      for (Index i = 0; t.backward && i < static_cast<Index>(dx.size()); ++i)
        put(t.dx, t.rows[begin + i / t.columns], i % t.columns, dx[static_cast<std::size_t>(i)]);
    }
  });
}

Status cross_entropy(const cuda::LossTask& t, int, void*) {
  const auto smooth = static_cast<double>(t.smoothing), share = smooth / static_cast<double>(t.classes);
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row) {
      const Index label = t.wide_labels ? static_cast<const std::int64_t*>(t.labels)[row]
                                        : static_cast<const std::int32_t*>(t.labels)[row];
      double sum = 0, all = 0;
      for (Index c = 0; c < t.classes; ++c)
        sum += std::exp(get(t.logits, row, c)), all += get(t.logits, row, c);
      const bool ignored = label == t.ignore;
      const double lse = std::log(sum), at_label = ignored ? 0 : get(t.logits, row, label);
      t.loss[row] = ignored ? 0 : lse - (1 - smooth) * at_label - share * all;
      if (t.total) *t.total += t.loss[row];
      if (t.counted) *t.counted += ignored ? 0 : 1;
      for (Index c = 0; t.dlogits.data && c < t.classes; ++c) {
        const double p = std::exp(get(t.logits, row, c) - lse), q = (c == label ? 1 - smooth : 0.0) + share;
        put(t.dlogits, row, c, ignored ? 0 : (p - q) * static_cast<double>(t.weight));
      }
    }
  });
}

Status binary_cross_entropy(const cuda::BinaryLossTask& t, int, void*) {
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row) {
      t.loss[row] = 0;
      for (Index c = 0; c < t.classes; ++c) {
        const double x = get(t.logits, row, c), y = get(t.labels, row, c), s = 1 / (1 + std::exp(-x));
        t.loss[row] -= y * std::log(s) + (1 - y) * std::log(1 - s);
        if (t.dlogits.data) put(t.dlogits, row, c, (s - y) * static_cast<double>(t.weight));
      }
      if (t.total) *t.total += t.loss[row];
    }
  });
}

Status adamw(const cuda::AdamWTask& t, int, void*) {
  return opened([&] {
    for (int n = 0; n < t.count; ++n) {
      const cuda::AdamWParameter& p = t.parameters[n];
      for (Index i = 0; t.squares && i < p.count; i += cuda::kAdamWBlock) {
        double& sum = t.squares[p.first_block + i / cuda::kAdamWBlock] = 0;
        for (Index k = i; k < std::min(i + cuda::kAdamWBlock, p.count); ++k)
          sum += static_cast<double>(p.gradient[k]) * static_cast<double>(p.gradient[k]);
      }
      if (t.squares || t.words->skip) continue;
      const cuda::AdamWWords& w = *t.words;
      const float shrink = p.decays ? 1 - w.rate * p.rate * w.decay : 1.0f;
      for (Index i = 0; i < p.count; ++i) {
        const float g = p.gradient[i] * w.factor;
        p.m[i] += (1 - w.beta1) * (g - p.m[i]);
        p.v[i] = p.v[i] * w.beta2 + (1 - w.beta2) * g * g;
        p.master[i] =
            p.master[i] * shrink - w.size * p.rate * (p.m[i] / (std::sqrt(p.v[i]) / w.root + w.eps));
        if (p.average) p.average[i] += w.gain * (p.master[i] - p.average[i]);
        if (p.weight) store_double(p.weight, p.weight_dtype, i, static_cast<double>(p.master[i]));
        if (t.clear_gradients) p.gradient[i] = 0;
      }
    }
  });
}

Status sgd(const cuda::SgdTask&, int, void*) { return {"fake/sgd", 1, "the double has no such kernel"}; }

Status norm_of(const cuda::NormOfTask& t, int, void*) {
  return opened([&] {
    double sum = 0;
    for (Index i = 0; i < t.blocks; ++i) sum += t.squares[i];
    const double norm = std::sqrt(sum), limit = static_cast<double>(t.limit);
    if (t.norm) *t.norm = norm;
    if (!std::isfinite(norm)) t.words->skip = 1;
    t.words->factor = limit > 0 && norm + 1e-6 > limit ? static_cast<float>(limit / (norm + 1e-6)) : 1.0f;
  });
}

}  // namespace headwise::fake
