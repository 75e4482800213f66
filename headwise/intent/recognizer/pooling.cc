#include "headwise/intent/recognizer/pooling.h"

#include <cmath>
#include <type_traits>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

/// Arithmetic of 16-bit rows happens in f32.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Wide<T> load(const T* x) {
  return static_cast<Wide<T>>(*x);
}

/// Eight sums side by side, so that the loop vectorizes; their order depends on dim alone.
template <class T, class W>
W dot(const T* a, const W* b, Index dim) {
  W sums[8] = {};
  Index i = 0;
  for (; i + 8 <= dim; i += 8)
    for (Index j = 0; j < 8; ++j) sums[j] += load(a + i + j) * b[i + j];
  for (; i < dim; ++i) sums[i % 8] += load(a + i) * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class T, class W>
void add_scaled(W scale, const T* x, W* to, Index dim) {
  for (Index i = 0; i < dim; ++i) to[i] += scale * load(x + i);
}

/// `from` in the arithmetic's type.
template <class T, class W>
void widen_row(const T* from, W* to, Index dim) {
  for (Index i = 0; i < dim; ++i) to[i] = load(from + i);
}

void check_texts(const PooledRows& rows) {
  for (Index b = 0; b < rows.texts(); ++b)
    require(rows.first(b + 1) > rows.first(b), ErrorKind::bad_shape, "pooling", "text ", b,
            " has no rows; give one or more");
}

/// The lists of rows as i32 beside x.
PooledRows rows_there(const PooledRows& rows, Call& call) {
  const auto moved = [&](const InputView& list) {
    const AnyView narrow = call.memory.on(Device::cpu()).take(DType::i32, {list.size[0]});
    for (Index i = 0; i < list.size[0]; ++i)
      static_cast<std::int32_t*>(narrow.data)[i] =
          static_cast<std::int32_t>(static_cast<const Index*>(list.data)[i]);
    return to(narrow, call.memory, call.ctx);
  };
  return {moved(rows.rows), moved(rows.offsets)};
}
/// What forward and backward on a device share; `weights` [outputs pooled].
cuda::PoolTask task_of(const AnyView& x, const AnyView& query, const PooledRows& there,
                       const AnyView& weights, const AnyView& out) {
  return {.x = rows_on_device("pooling", "x", x),
          .query = rows_on_device("pooling", "query", query),
          .out = rows_on_device("pooling", "out", out),
          .rows = static_cast<const std::int32_t*>(there.rows.data),
          .offsets = static_cast<const std::int32_t*>(there.offsets.data),
          .weights = static_cast<float*>(weights.data),
          .texts = there.texts(),
          .pooled = weights.size[1],
          .columns = x.size[1],
          .outputs = weights.size[0],
          .queries = query.given(),
          .scale = 1 / std::sqrt(static_cast<float>(x.size[1]))};
}

DType wide_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

TextPooling::TextPooling(ParamSet& params, std::string_view name, Index queries, Index dim)
    : outputs_(max_of(1, queries)), dim_(dim) {
  require(dim > 0 && queries >= 0, ErrorKind::bad_shape, "pooling", "got ", queries, " queries of ", dim,
          " columns; columns start at 1, queries at 0");
  const auto scope = params.scope(name);
  // Small: a text starts near the mean of its rows.
  if (queries > 0) query_ = params.add("query", {queries, dim}, Init::normal(0.02));
}

AnyView TextPooling::forward(const AnyView& x, const PooledRows& rows, Call& call, Saved* saved) const {
  const Index texts = rows.texts(), pooled = rows.first(texts);
  require(x.rank == 2 && x.size[1] == dim_, ErrorKind::bad_shape, "pooling", "x is ", x, "; give rows of ",
          dim_, " columns");
  check_texts(rows);
  const DType wide = wide_dtype(x.dtype);
  const AnyView y = call.memory.take(x.dtype, {texts, outputs_ * dim_});
  if (!x.on_cpu()) {
    const PooledRows there = rows_there(rows, call);
    const AnyView weights = call.memory.take(DType::f32, {outputs_, pooled});
    start(task_of(x, query_.value(), there, weights, y), x.where(), call.ctx.stream());
    if (saved) *saved = {x, there, weights};
    return y;
  }
  const AnyView weights = call.memory.take(wide, {outputs_, pooled});
  const AnyView sums = call.memory.take(wide, {texts, 2 * dim_});  // a query and its sum, a text each
  const FloatEnv env;
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    using W = Wide<T>;
    const W scale = 1 / std::sqrt(static_cast<W>(dim_));
    const auto row = [&](Index t) { return static_cast<const T*>(x.data) + rows.at(t) * x.step[0]; };
    call.ctx.pool().parallel_for(texts, [&](Index b, int) noexcept {
      const Index first = rows.first(b), count = rows.first(b + 1) - first;
      W* query = static_cast<W*>(sums.data) + b * 2 * dim_;
      W* sum = query + dim_;
      for (Index i = 0; i < outputs_; ++i) {
        W* a = static_cast<W*>(weights.data) + outputs_ * first + i * count;
        if (query_.given()) {
          widen_row(static_cast<const T*>(query_.value().data) + i * dim_, query, dim_);
          W most = -INFINITY, total = 0;
          for (Index t = 0; t < count; ++t) {
            a[t] = scale * dot(row(first + t), query, dim_);
            most = a[t] > most ? a[t] : most;
          }
          for (Index t = 0; t < count; ++t) total += a[t] = std::exp(a[t] - most);
          for (Index t = 0; t < count; ++t) a[t] /= total;
        } else {
          for (Index t = 0; t < count; ++t) a[t] = 1 / static_cast<W>(count);
        }
        for (Index d = 0; d < dim_; ++d) sum[d] = 0;
        for (Index t = 0; t < count; ++t) add_scaled(a[t], row(first + t), sum, dim_);
        T* to = static_cast<T*>(y.data) + (b * outputs_ + i) * dim_;
        for (Index d = 0; d < dim_; ++d) to[d] = static_cast<T>(sum[d]);
      }
    });
  });
  if (saved) *saved = {x, rows, weights};
  return y;
}

namespace {

AnyView backward_there(const AnyView& dy, const Learned& query, Call& call, const TextPooling::Saved& saved) {
  const AnyView dx = call.memory.take(dy.dtype, {saved.x.size[0], saved.x.size[1]});
  clear_bytes(dx, call.ctx);
  const Scratch scratch(call.memory);
  const AnyView slopes = call.memory.take(DType::f32, {saved.weights.size[0], saved.weights.size[1]});
  cuda::PoolTask task = task_of(saved.x, query.value(), saved.rows, saved.weights, dy);
  task.dx = rows_on_device("pooling", "dx", dx), task.slopes = static_cast<float*>(slopes.data);
  const AnyView grad = query.grad();
  require(!grad.given() || grad.dtype == DType::f32, ErrorKind::bad_dtype, "pooling",
          "the query's gradient is ", grad, " on ", grad.where(), "; give f32 there");
  task.dquery = static_cast<float*>(grad.data), task.backward = true;
  start(task, dy.where(), call.ctx.stream());
  return dx;
}

}  // namespace

AnyView TextPooling::backward(const AnyView& dy, Call& call, const Saved& saved) const {
  if (!dy.on_cpu()) return backward_there(dy, query_, call, saved);
  const PooledRows& rows = saved.rows;
  const Index texts = rows.texts(), pooled = rows.first(texts), all = saved.x.size[0];
  const DType wide = wide_dtype(dy.dtype);
  const AnyView dx = call.memory.take(dy.dtype, {all, dim_});
  fill_zeros(dx);
  const Scratch scratch(call.memory);
  Index longest = 0;
  for (Index b = 0; b < texts; ++b) longest = max_of(longest, rows.first(b + 1) - rows.first(b));
  // Of each text: query, slope of p, slopes of its rows.
  const AnyView scores = call.memory.take(wide, {outputs_, pooled});  // dL / d(u . x)
  const AnyView room = call.memory.take(wide, {call.ctx.threads(), longest + 2, dim_});
  const FloatEnv env;
  visit_float(dy.dtype, [&]<class T>(Type<T>) {
    using W = Wide<T>;
    const W scale = 1 / std::sqrt(static_cast<W>(dim_));
    const auto row = [&](Index t) {
      return static_cast<const T*>(saved.x.data) + rows.at(t) * saved.x.step[0];
    };
    call.ctx.pool().parallel_for(texts, [&](Index b, int worker) noexcept {
      const Index first = rows.first(b), count = rows.first(b + 1) - first;
      W* query = static_cast<W*>(room.data) + worker * (longest + 2) * dim_;
      W* slope = query + dim_;
      W* drows = slope + dim_;
      for (Index d = 0; d < count * dim_; ++d) drows[d] = 0;
      for (Index i = 0; i < outputs_; ++i) {
        const Index at = outputs_ * first + i * count;
        const W* a = static_cast<const W*>(saved.weights.data) + at;
        W* ds = static_cast<W*>(scores.data) + at;
        widen_row(static_cast<const T*>(dy.data) + b * dy.step[0] + i * dim_, slope, dim_);
        // p = sum a_t x_t  ->  dx_t = a_t dp
        for (Index t = 0; t < count; ++t) add_scaled(a[t], slope, drows + t * dim_, dim_);
        if (!query_.given()) continue;
        // a = softmax(s)  ->  ds_t = a_t (da_t - sum a da), da_t = dp . x_t
        W mean = 0;
        for (Index t = 0; t < count; ++t) mean += a[t] * (ds[t] = dot(row(first + t), slope, dim_));
        widen_row(static_cast<const T*>(query_.value().data) + i * dim_, query, dim_);
        for (Index t = 0; t < count; ++t) {
          ds[t] = scale * a[t] * (ds[t] - mean);
          add_scaled(ds[t], query, drows + t * dim_, dim_);
        }
      }
      for (Index t = 0; t < count; ++t) {
        T* to = static_cast<T*>(dx.data) + rows.at(first + t) * dim_;
        for (Index d = 0; d < dim_; ++d) to[d] = static_cast<T>(drows[t * dim_ + d]);
      }
    });
    if (!query_.grad().given()) return;
    // A query's gradient is summed over texts in ascending order, whatever the threads.
    const AnyView sums = call.memory.take(wide, {outputs_, dim_});
    call.ctx.pool().parallel_for(outputs_, [&](Index i, int) noexcept {
      W* sum = static_cast<W*>(sums.data) + i * dim_;
      for (Index d = 0; d < dim_; ++d) sum[d] = 0;
      for (Index b = 0; b < texts; ++b) {
        const Index first = rows.first(b), count = rows.first(b + 1) - first;
        const W* ds = static_cast<const W*>(scores.data) + outputs_ * first + i * count;
        for (Index t = 0; t < count; ++t) add_scaled(ds[t], row(first + t), sum, dim_);
      }
    });
    add_into(query_.grad(), sums);
  });
  return dx;
}

namespace {

/// Rows of a text around row t, from `first` to before `last` of the text's own rows.
struct Around {
  Index first, last;
  Around(Index t, Index begin, Index end, Index reach)
      : first(max_of(begin, t - reach)), last(min_of(end, t + reach + 1)) {}
  double share() const { return 1 / static_cast<double>(last - first); }
};

}  // namespace

AnyView TextPeaks::forward(const AnyView& scores, const PooledRows& rows, Call& call, Saved* saved) {
  const Index texts = rows.texts(), labels = scores.size[1];
  check_texts(rows);
  const AnyView y = call.memory.take(scores.dtype, {texts, labels});
  const AnyView means = call.memory.take(scores.dtype, {rows.first(texts), labels});
  const FloatEnv env;
  visit_float(scores.dtype, [&]<class T>(Type<T>) {
    const auto* s = static_cast<const T*>(scores.data);
    auto* m = static_cast<T*>(means.data);
    call.ctx.pool().parallel_for(texts * labels, [&](Index i, int) noexcept {
      const Index l = i % labels, begin = rows.first(i / labels), end = rows.first(i / labels + 1);
      double most = -INFINITY, sum = 0;
      for (Index t = begin; t < end; ++t) {
        const Around near(t, begin, end, kReach);
        double mean = 0;
        for (Index u = near.first; u < near.last; ++u)
          mean += near.share() * cpu::widen(s[rows.at(u) * scores.step[0] + l]);
        m[t * labels + l] = cpu::narrow<T>(mean);
        const double rounded = kSharpness * cpu::widen(m[t * labels + l]);
        most = rounded > most ? rounded : most;
      }
      for (Index t = begin; t < end; ++t) sum += std::exp(kSharpness * cpu::widen(m[t * labels + l]) - most);
      static_cast<T*>(y.data)[i] = cpu::narrow<T>((most + std::log(sum)) / kSharpness);
    });
  });
  if (saved) *saved = {means, y, rows, scores.size[0]};
  return y;
}

AnyView TextPeaks::backward(const AnyView& dy, Call& call, const Saved& saved) {
  const PooledRows& rows = saved.rows;
  const Index texts = rows.texts(), labels = saved.means.size[1];
  const AnyView ds = call.memory.take(dy.dtype, {saved.all_rows, labels});
  fill_zeros(ds);
  const Scratch scratch(call.memory);
  const AnyView slopes = call.memory.take(wide_dtype(dy.dtype), {rows.first(texts), labels});
  const FloatEnv env;
  visit_float(dy.dtype, [&]<class T>(Type<T>) {
    using W = Wide<T>;
    auto* dm = static_cast<W*>(slopes.data);
    call.ctx.pool().parallel_for(texts * labels, [&](Index i, int) noexcept {
      const Index b = i / labels, l = i % labels, begin = rows.first(b), end = rows.first(b + 1);
      const double y = cpu::widen(static_cast<const T*>(saved.y.data)[i]);
      const double slope = cpu::widen(static_cast<const T*>(dy.data)[b * dy.step[0] + l * dy.step[1]]);
      // dy_l / dm_tl = exp(kSharpness (m_tl - y_l)), over the rows of its mean
      for (Index t = begin; t < end; ++t) {
        const double m = cpu::widen(static_cast<const T*>(saved.means.data)[t * labels + l]);
        dm[t * labels + l] =
            static_cast<W>(slope * std::exp(kSharpness * (m - y)) * Around(t, begin, end, kReach).share());
      }
      for (Index u = begin; u < end; ++u) {
        const Around near(u, begin, end, kReach);
        double sum = 0;
        for (Index t = near.first; t < near.last; ++t) sum += static_cast<double>(dm[t * labels + l]);
        static_cast<T*>(ds.data)[rows.at(u) * labels + l] = cpu::narrow<T>(sum);
      }
    });
  });
  return ds;
}

}  // namespace headwise
