// Posing a setting: random numbers, then their places in memory.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/setting/setting_pose.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "headwise/ops/keys/quantize_kv.h"

#include "headwise/base/context.h"
#include "tests/support/case.h"
#include "tests/support/random_rows.h"
#include "tests/support/setting/setting_values.h"

namespace headwise::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInf = std::numeric_limits<double>::infinity();

Index plain_offset(const InputView& v, Index n) {
  Index offset = 0;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    offset += n % v.size[axis] * v.step[axis];
    n /= v.size[axis];
  }
  return offset;
}

double most_of(const InputView& v) {
  double most = 0;
  for (Index n = 0; n < v.count(); ++n)
    if (const double x = std::fabs(load_double(v.data, v.dtype, plain_offset(v, n))); std::isfinite(x))
      most = std::max(most, x);
  return most;
}
/// Largest 2-norm over the last axis.
double most_norm(const InputView& v) {
  const Index width = v.size[v.rank - 1];
  double most = 0;
  for (Index n = 0; n + width <= v.count() && width > 0; n += width) {
    double sum = 0;
    for (Index c = 0; c < width; ++c) {
      const double x = load_double(v.data, v.dtype, n + c);
      sum += x * x;
    }
    most = std::max(most, sum);
  }
  return std::sqrt(most);
}

Placement placement_of(int layout, int rank) {
  switch (layout) {
    case 1: return {.order = rank == 4 ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{1, 0, 2}};
    case 3: return {.inner = 2, .gap = 3, .first = 1};
    case 5: return {.junk = true};
    case 6: return {.gap = 5, .first = 3};
    default: return {};
  }
}

/// Makes every slice along `axis` the first one, so that a step of 0 means the same numbers.
void repeat_first(const InputView& v, int axis) {
  for (Index n = 0; n < v.count(); ++n) {
    const Index index = n / v.step[axis] % v.size[axis];
    store_double(v.data, v.dtype, n, load_double(v.data, v.dtype, n - index * v.step[axis]));
  }
}

struct Poser {
  Posed& p;
  const Choice& c;
  const std::uint64_t seed;

  const AnyView& keep(Tensor t) {
    p.kept.push_back(std::move(t));
    return p.kept.back().view();
  }
  AnyView keep(Placed placed) {
    p.kept.push_back(std::move(placed.memory));
    return placed.view;
  }
  AnyView normal(std::initializer_list<Index> sizes, DType dtype, std::uint64_t salt, double scale = 1) {
    Tensor t = random_normal(sizes, dtype, seed * 1000 + salt);
    if (scale != 1)
      for (Index n = 0; n < t.view().count(); ++n)
        store_double(t.view().data, dtype, n, scale * load_double(t.view().data, dtype, n));
    return keep(std::move(t));
  }
  AnyView numbers(const std::vector<Index>& values) { return keep(tensor_of(values)); }

  void lengths() {
    Sizes& s = p.sizes;
    p.sizes_ragged = c[kRagged] == 1;
    if (p.sizes_ragged && s.batch == 0) s.q_tokens = s.kv_tokens = 0;
    if (keys_values(c).page > 0 && s.batch == 0)
      s.kv_tokens = 0;  // only its sequences tell how long they are
    p.q_lengths.assign(static_cast<std::size_t>(s.batch), s.q_tokens);
    p.kv_lengths.assign(static_cast<std::size_t>(s.batch), s.kv_tokens);
    if (!p.sizes_ragged) return;
    // The first sequence is the longest, another may be empty.
    for (std::size_t b = 1; b < p.q_lengths.size(); ++b) {
      p.q_lengths[b] = random_integers(1, 0, s.q_tokens, seed + 50 + b)[0];
      p.kv_lengths[b] = random_integers(1, 0, s.kv_tokens, seed + 60 + b)[0];
    }
    const std::vector<Index> q = offsets_of(p.q_lengths), kv = offsets_of(p.kv_lengths);
    p.q_total = q.back(), p.kv_total = kv.back();
    p.args.q_offsets = numbers(q), p.args.kv_offsets = numbers(kv);
  }

  void tensors() {
    const Sizes& s = p.sizes;
    const Index b = p.tensor_batch();
    const int kind = s.heads == 0 ? 0 : c[kHeadKind];
    Tensor q, k, v;
    const Index rim = 2, q_row = s.heads * s.head_dim, v_row = s.heads * s.value_dim;
    if (kind == 1) {  // overlapped: heads read a rim of both neighbours, q and k as wide as that
      p.heads.q = p.heads.k = HeadLayout::overlapped(s.heads, s.head_dim, rim);
      p.heads.v = {s.heads, s.value_dim, 1, std::max<Index>(1, s.value_dim - 1), -1, v_row};
    } else if (kind == 3) {  // columns of a row: k in groups, v one head for all
      p.heads.q = {s.heads, s.head_dim, 1, s.head_dim, 0, q_row};
      p.heads.k = {s.heads,    s.head_dim, std::max<Index>(1, s.heads / std::max<Index>(1, s.kv_heads)),
                   s.head_dim, 0,          q_row};
      p.heads.v = {s.heads, s.value_dim, 1, 0, 1, v_row};
    }
    const auto make = [&](const HeadLayout& l, Index rows, Index slots, Index dim, std::uint64_t salt) {
      return l.row > 0 ? random_normal({b, rows, l.row}, s.dtype, seed * 1000 + salt)
                       : random_normal({b, rows, slots, dim}, s.dtype, seed * 1000 + salt);
    };
    q = make(p.heads.q, p.q_rows(), s.heads, s.head_dim, 1);
    k = make(p.heads.k, p.kv_rows(), kind == 2 ? 1 : s.kv_heads, s.head_dim, 2);
    v = make(p.heads.v, p.kv_rows(), kind == 2 ? s.heads : s.kv_heads, s.value_dim, 3);
    put(std::move(q), std::move(k), std::move(v));
  }
  void put(Tensor q, Tensor k, Tensor v) {
    const int layout = c[kLayout], rank = k.view().rank;
    if (layout == 4)  // stride 0: along batch, and along heads where there is such an axis
      for (Tensor* t : {&k, &v}) {
        if (t->view().count() == 0) continue;
        repeat_first(t->view(), 0);
        if (t->view().rank == 4) repeat_first(t->view(), 2);
      }
    const bool alias = layout == 7 && k.view().rank == v.view().rank && same_sizes(k.view(), v.view());
    if (alias) v = k.clone();
    p.most_value = most_of(v.view());
    p.most_product = most_norm(q.view()) * most_norm(k.view());
    p.truth.q = keep(converted(q.view(), DType::f64)), p.truth.k = keep(converted(k.view(), DType::f64));
    p.truth.v = keep(converted(v.view(), DType::f64));
    AttentionArgs& a = p.args;
    if (layout == 2 && rank == 4 && q.view().rank == 4) {
      pack(q.view(), k.view(), v.view());
    } else if (layout == 4) {
      a.q = keep(place(q.view(), {}));
      a.k = repeated(k.view()), a.v = repeated(v.view());
    } else {
      a.q = keep(place(q.view(), placement_of(layout, q.view().rank)));
      a.k = keep(place(k.view(), placement_of(layout, k.view().rank)));
      a.v = alias ? a.k : keep(place(v.view(), placement_of(layout, v.view().rank)));
    }
  }
  static bool same_sizes(const InputView& x, const InputView& y) {
    return std::memcmp(x.size, y.size, sizeof(x.size)) == 0;
  }
  AnyView repeated(const InputView& plain) {
    AnyView one = plain;
    const bool axes[4] = {true, false, plain.rank == 4, false};
    for (int axis = 0; axis < plain.rank; ++axis)
      if (axes[axis] && one.size[axis] > 1) one.size[axis] = 1;
    AnyView v = keep(place(one, {}));
    for (int axis = 0; axis < plain.rank; ++axis)
      if (v.size[axis] != plain.size[axis]) v.size[axis] = plain.size[axis], v.step[axis] = 0;
    return v;
  }
  /// One row holds q, k and v side by side; where queries and keys are not the same tokens, k and v alone.
  void pack(const InputView& q, const InputView& k, const InputView& v) {
    const bool with_q = q.size[1] == k.size[1];
    const AnyView* parts[] = {&q, &k, &v};
    AnyView* out[] = {&p.args.q, &p.args.k, &p.args.v};
    Index width = 0;
    for (int i = with_q ? 0 : 1; i < 3; ++i) width += parts[i]->size[2] * parts[i]->size[3];
    Tensor memory(q.dtype, {k.size[0] * k.size[1] * width + 1});
    Index column = 0;
    for (int i = with_q ? 0 : 1; i < 3; ++i) {
      AnyView view = *parts[i];
      view.data = static_cast<std::byte*>(memory.view().data) + column * size_of(q.dtype);
      view.step[3] = 1, view.step[2] = view.size[3], view.step[1] = width,
      view.step[0] = width * view.size[1];
      for (Index n = 0; n < view.count(); ++n)
        store_double(view.data, view.dtype, plain_offset(view, n),
                     load_double(parts[i]->data, view.dtype, n));
      column += view.size[2] * view.size[3];
      *out[i] = view;
    }
    if (!with_q) p.args.q = keep(place(q, {}));
    p.kept.push_back(std::move(memory));
  }

  /// k and v as int8 or e4m3 with a scale for each token and kv head; the truth is what those numbers stand
  /// for.
  void quantized() {
    const DType eight = keys_values(c).eight;
    if (!keys_values(c).quantized()) return;
    Context ctx({.threads = 1});
    const auto as_eight = [&](AnyView& truth, AnyView& x, AnyView& scale) {
      const AnyView t = truth;
      if (t.rank == 3) {  // rows without a head axis: refused
        x = keep(Tensor(eight, {t.size[0], t.size[1], t.size[2]}));
        return;
      }
      x = keep(Tensor(eight, {t.size[0], t.size[1], t.size[2], t.size[3]}));
      scale = keep(Tensor(DType::f32, {t.size[0], t.size[1], t.size[2]}));
      quantize_kv(t, x, scale, ctx);
      for (Index n = 0; n < t.count(); ++n)
        store_double(t.data, t.dtype, n,
                     static_cast<double>(static_cast<const float*>(scale.data)[n / t.size[3]] *
                                         static_cast<float>(load_double(x.data, eight, n))));
    };
    as_eight(p.truth.k, p.args.k, p.args.k_scale);
    as_eight(p.truth.v, p.args.v, p.args.v_scale);
  }

  /// k and v in pages, in an order of their own; NaN where no token lies.
  void paged() {
    if (keys_values(c).page == 0) return;
    const bool by_head = keys_values(c).by_head;
    const Index size = keys_values(c).page, batch = p.sizes.batch,
                each = ceil_div(p.sizes.kv_tokens, size) + 1;
    const Index pages = batch * each;
    Tensor table(DType::i32, {batch, each});
    for (Index n = 0; n < pages; ++n)
      table.values<std::int32_t>()[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(pages - 1 - n);
    p.args.page_table.table = keep(std::move(table)), p.args.page_table.lengths = numbers(p.kv_lengths);
    if (p.truth.k.rank == 3) return;  // refused
    const AttentionArgs& whole = keys_values(c).quantized() ? p.args : p.truth;
    for (auto [from, to] : {std::pair{&whole.k, &p.args.k},
                            {&whole.v, &p.args.v},
                            {&p.args.k_scale, &p.args.k_scale},
                            {&p.args.v_scale, &p.args.v_scale}}) {
      const AnyView x = *from;
      if (!x.given()) continue;
      const Index heads = x.size[2], dim = x.rank == 4 ? x.size[3] : 1;
      AnyView pool = by_head ? keep(Tensor(to->dtype, {pages, heads, size, dim}))
                             : keep(Tensor(to->dtype, {pages, size, heads, dim}));
      for (Index n = 0; n < pool.count(); ++n)
        store_double(pool.data, pool.dtype, n, x.dtype == DType::i8 ? 127 : kNan);
      if (by_head) std::swap(pool.size[1], pool.size[2]), std::swap(pool.step[1], pool.step[2]);
      Index first = 0;  // row of the sequence in x
      for (Index b = 0; b < batch; ++b) {
        const Index tokens = p.kv_lengths[static_cast<std::size_t>(b)];
        for (Index n = 0; n < tokens * heads * dim; ++n) {
          const Index column = n % dim, head = n / dim % heads, token = n / dim / heads,
                      page = pages - 1 - (b * each + token / size);
          store_double(pool.data, pool.dtype,
                       page * pool.step[0] + token % size * pool.step[1] + head * pool.step[2] + column,
                       load_double(x.data, x.dtype, first * heads * dim + n));
        }
        first += p.sizes_ragged ? tokens : x.size[1];
      }
      pool.rank = x.rank;
      *to = pool;
    }
  }

  /// Pages whose keys the mask closes for every query are gone: -1.
  void gone() {
    const Index size = keys_values(c).page;
    if (size == 0 || p.args.k.rank == 3 || !p.args.mask.given()) return;
    AttentionProblem all;
    all.batch = p.sizes.batch, all.q_tokens = p.sizes.q_tokens, all.kv_tokens = p.sizes.kv_tokens;
    all.ragged = p.sizes_ragged;
    AttentionArgs one_piece = p.args;
    one_piece.page_table = {};
    for (Index b = 0; b < all.batch; ++b) {
      const SequenceLocation at = place_of(all, one_piece, b);
      for (Index page = 0; page * size < at.kv_tokens; ++page) {
        bool seen = false;
        for (Index h = 0; h < p.sizes.heads; ++h)
          for (Index q = at.q_start; q < at.q_start + at.q_tokens && !seen; ++q)
            for (Index k = page * size; k < std::min(at.kv_tokens, (page + 1) * size); ++k)
              seen = seen || p.args.mask.of(h).may_attend(q, k, {b, h, at.q_start});
        const AnyView& t = p.args.page_table.table;
        if (!seen) static_cast<std::int32_t*>(t.data)[b * t.step[0] + page * t.step[1]] = -1;
      }
    }
  }

  void terms() {
    const Sizes& s = p.sizes;
    HeadInputs& in = p.args.inputs;
    const Index h = s.heads, b = s.batch, q = s.q_tokens, kv = s.kv_tokens;
    double scale = 1 / std::sqrt(static_cast<double>(p.heads.q.heads ? p.heads.q.dim : s.head_dim));
    constexpr double kScales[] = {0, 0.3, 0, 0, -0.2, 1e-30, 1e30};
    if (c[kScale] == 2) {
      in.scale = normal({h}, DType::f32, 10, 0.2);
      scale = most_of(in.scale);
    } else if (c[kScale] > 0) {
      Tensor t(DType::f64, {1});
      t.values<double>()[0] = scale = kScales[c[kScale]];
      in.scale = keep(std::move(t));
    }
    p.most_product *= std::fabs(scale);
    p.most_logit = p.most_product;
    if (c[kSoftcap] > 0)
      in.softcap = c[kSoftcap] == 1 ? 5 : 30, p.most_logit = std::min(p.most_logit, in.softcap);
    if (c[kAlibi] > 0) {
      in.slopes = normal({h}, c[kAlibi] == 1 ? DType::f32 : DType::bf16, 11, 0.1);
      p.most_logit += most_of(in.slopes) * static_cast<double>(q + kv + 10);
    }
    switch (c[kBias]) {
      case 1: in.bias = normal({b, h, q, kv}, DType::f32, 12); break;
      case 2: in.bias = normal({1, 1, q, kv}, DType::f32, 12); break;
      case 3: in.bias = normal({b, 1, 1, kv}, DType::bf16, 12); break;
      case 4: in.bias = normal({1, h, q, 1}, DType::f16, 12); break;
      case 5: in.bias = normal({1, 1, 1, 1}, DType::f64, 12); break;
      case 6: {
        Tensor t = random_normal({b, h, q, kv}, DType::f32, seed * 1000 + 12);
        in.bias = keep(place(t.view(), {.order = {3, 0, 2, 1}, .gap = 1}));
        break;
      }
      case 7:
        in.bias = h == 0 ? normal({b, h, q, kv}, DType::f32, 12)
                         : unmerge_heads(normal({b * h, q, kv}, DType::f32, 12), h);
        break;
      case 8: {
        in.bias = normal({1, h, q, kv}, DType::f32, 12);
        for (Index n = 0; n < in.bias.count(); ++n)
          if (n % 3 == 0 || (kv > 0 && n / kv % 7 == 2))
            static_cast<float*>(in.bias.data)[n] = static_cast<float>(-kInf);
        break;
      }
      default: break;
    }
    if (in.bias.given()) p.most_logit += most_of(in.bias);
    if (c[kRelative] > 0) {
      in.buckets = {.buckets = 12, .max_distance = 50, .bidirectional = c[kRelative] == 2};
      in.relative = normal({12, h}, DType::f32, 13);
      p.most_logit += most_of(in.relative);
    }
    if (c[kSinks] > 0) {
      in.sinks = normal({h}, c[kSinks] == 3 ? DType::bf16 : DType::f32, 14);
      constexpr double kShift[] = {0, 0, 30, -30, -kInf};
      for (Index n = 0; n < h; ++n)
        store_double(in.sinks.data, in.sinks.dtype, n,
                     load_double(in.sinks.data, in.sinks.dtype, n) + kShift[c[kSinks]]);
      if (c[kSinks] < 4) p.most_logit = std::max(p.most_logit, most_of(in.sinks));
    }
    if (c[kDropout] > 0) {
      in.dropout = c[kDropout] == 1 ? 0.1 : 0.5;
      in.seed = seed * 77 + 5;
      if (c[kDropout] == 2) in.sequence_ids = numbers(random_integers(b, 0, 1000, seed + 8));
      p.most_value /= 1 - in.dropout;
    }
    if (c[kGate] > 0) {
      in.gate = normal({p.tensor_batch(), p.q_rows(), h}, c[kGate] == 1 ? DType::f32 : DType::bf16, 15);
      p.most_value *= most_of(in.gate);
    }
    if (c[kRows] > 0) list_rows();
    switch (c[kStart]) {
      case 1: p.args.q_start = numbers({7}); break;
      case 2: p.args.q_start = numbers({-3}); break;
      case 3: p.args.q_start = numbers({kStartEnd}); break;
      case 4: {
        std::vector<Index> starts = random_integers(b, -4, 60, seed + 9);
        if (b > 1) starts[1] = kStartEnd;
        p.args.q_start = numbers(starts);
        break;
      }
      default: break;
    }
  }

  /// some: about half of the rows; few and none: every third head lists nothing, the others a tenth.
  void list_rows() {
    std::vector<Index> offsets = {0}, index;
    for (Index n = 0; n < p.sizes.batch * p.sizes.heads; ++n) {
      const Index tokens = p.q_lengths[static_cast<std::size_t>(n / p.sizes.heads)];
      const std::vector<Index> draw =
          random_integers(tokens, 0, 9, seed + 50 + static_cast<std::uint64_t>(n));
      for (Index i = 0; i < tokens; ++i)
        if (c[kRows] == 1 ? draw[static_cast<std::size_t>(i)] < 5
                          : n % 3 != 2 && draw[static_cast<std::size_t>(i)] == 0)
          index.push_back(i);
      offsets.push_back(static_cast<Index>(index.size()));
    }
    p.args.inputs.rows = {numbers(offsets), numbers(index)};
  }

  void probes() {
    const Sizes& s = p.sizes;
    p.probe.rows = c[kRowProbe] > 0;
    p.probe.top_k = number_of(c, kTopK);
    p.probe.classes = number_of(c, kClasses);
    p.probe.columns = c[kColumns] == 1;
    p.probe.scores = c[kStage] == 1 ? ScoreStage::weights : ScoreStage::none;
    if (p.probe.classes > 0) {
      Tensor t(DType::i32, {p.tensor_batch(), p.kv_rows()});
      const std::vector<Index> of = random_integers(t.view().count(), -1, 4, seed + 20);
      for (std::size_t n = 0; n < of.size(); ++n)
        t.values<std::int32_t>()[n] = static_cast<std::int32_t>(of[n]);
      p.args.probe.class_of = keep(std::move(t));
    }
    std::vector<Index> rows;
    for (Index b = 0; b < s.batch && s.heads > 0; ++b)
      if (p.q_lengths[static_cast<std::size_t>(b)] > 0) rows.push_back(b);
    if (c[kPicked] == 0 || rows.empty()) return;
    p.probe.picked = number_of(c, kPicked);
    Tensor t(DType::i64, {p.probe.picked, 3});
    for (Index n = 0; n < p.probe.picked; ++n) {
      const std::uint64_t salt = seed + 30 + static_cast<std::uint64_t>(n);
      const Index b =
          rows[static_cast<std::size_t>(random_integers(1, 0, static_cast<Index>(rows.size()) - 1, salt)[0])];
      auto* to = t.values<std::int64_t>().data() + n * 3;
      to[0] = b, to[1] = random_integers(1, 0, s.heads - 1, salt + 1)[0];
      to[2] = random_integers(1, 0, p.q_lengths[static_cast<std::size_t>(b)] - 1, salt + 2)[0];
    }
    p.args.probe.picks = keep(std::move(t));
  }
};

}  // namespace

Placed place(const InputView& plain, const Placement& how) {
  Placed r;
  r.view = plain;
  Index step = how.inner;
  for (int i = plain.rank - 1; i >= 0; --i) {
    const int axis = how.order.empty() ? i : how.order[static_cast<std::size_t>(i)];
    r.view.step[axis] = step;
    step = step * std::max<Index>(1, plain.size[axis]) + how.gap;
  }
  r.memory = Tensor(plain.dtype, {how.first + step + 1});
  for (Index n = 0; n < r.memory.view().count(); ++n)
    store_double(r.memory.view().data, plain.dtype, n, kNan);
  r.view.data = static_cast<std::byte*>(r.memory.view().data) + how.first * size_of(plain.dtype);
  for (Index n = 0; n < plain.count(); ++n)
    store_double(r.view.data, plain.dtype, plain_offset(r.view, n),
                 load_double(plain.data, plain.dtype, plain_offset(plain, n)));
  if (how.junk)
    for (int axis = 0; axis < plain.rank; ++axis)
      if (plain.size[axis] == 1) r.view.step[axis] = 3331333;
  return r;
}

Index touched_outside(const Placed& placed, const Tensor& before) {
  const InputView v = placed.view, memory = placed.memory.view();
  std::vector<bool> own(static_cast<std::size_t>(memory.count()));
  const Index first =
      (static_cast<const std::byte*>(v.data) - static_cast<const std::byte*>(memory.data)) / size_of(v.dtype);
  for (Index n = 0; n < v.count(); ++n) {
    Index rest = n, at = first;
    for (int axis = v.rank - 1; axis >= 0; --axis)
      at += rest % v.size[axis] * (v.size[axis] == 1 ? 0 : v.step[axis]), rest /= v.size[axis];
    own[static_cast<std::size_t>(at)] = true;
  }
  const auto unit = static_cast<std::size_t>(size_of(v.dtype));
  for (std::size_t n = 0; n < own.size(); ++n)
    if (!own[n] && std::memcmp(static_cast<const std::byte*>(memory.data) + n * unit,
                               static_cast<const std::byte*>(before.view().data) + n * unit, unit) != 0)
      return static_cast<Index>(n);
  return -1;
}

void pose(const Choice& c, const SettingOptions& options, Posed& p) {
  p.choice = c;
  p.sizes = options.sizes ? *options.sizes : sizes_of(c);
  Poser poser{p, p.choice, options.seed};
  poser.lengths();
  poser.tensors();
  poser.quantized();
  poser.paged();
  poser.terms();
  poser.probes();
  p.mask = options.mask ? *options.mask : make_mask(c[kMask], p.sizes, options.seed + 40);
  p.args.mask = p.mask.set();
  poser.gone();
  const AttentionArgs plain = p.truth;
  p.truth = p.args;
  p.truth.q = plain.q, p.truth.k = plain.k, p.truth.v = plain.v;
  p.truth.k_scale = p.truth.v_scale = {};
  p.truth.page_table = {};
  if (keys_values(c).page > 0) p.args.kv_offsets = {};
}

}  // namespace headwise::test
