#include "headwise/decoder/forward/pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/decoder/forward/memory.h"
#include "headwise/ops/norm/layer_norm.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/row/embedding.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "decoder";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

AnyView some_rows(AnyView v, Index first, Index rows) {
  v.data = static_cast<std::byte*>(v.data) + first * v.step[0] * size_of(v.dtype);
  v.size[0] = rows;
  return v;
}

template <class To, class From>
void convert_row(const void* from, void* to, Index count) noexcept {
  const auto* x = static_cast<const From*>(from);
  auto* y = static_cast<To*>(to);
  for (Index i = 0; i < count; ++i) y[i] = static_cast<To>(static_cast<float>(x[i]));
}
/// [batch tokens heads dim] between f32 and 16 bits; heads lie side by side.
void convert(const AnyView& from, const AnyView& to, Context& ctx) {
  const bool narrow = from.dtype == DType::f32, brain = (narrow ? to : from).dtype == DType::bf16;
  const auto row = narrow ? (brain ? convert_row<bf16, float> : convert_row<f16, float>)
                          : (brain ? convert_row<float, bf16> : convert_row<float, f16>);
  constexpr Index kRows = 16;  // of a task
  const Index tokens = from.size[1], rows = from.size[0] * tokens, each = from.size[2] * from.size[3];
  ctx.pool().parallel_for(ceil_div(rows, kRows), [&](Index task, int) noexcept {
    const auto place = [&](const AnyView& v, Index i) {
      return static_cast<std::byte*>(v.data) +
             (i / tokens * v.step[0] + i % tokens * v.step[1]) * size_of(v.dtype);
    };
    for (Index i = task * kRows; i < min_of(rows, (task + 1) * kRows); ++i)
      row(place(from, i), place(to, i), each);
  });
}

void check_memory(const DecoderConfig& c, const DecoderRow& row) {
  if (!c.cross)
    return require(row.memory == nullptr, ErrorKind::bad_argument, kOp, "a ", c.family,
                   " model has no cross-attention; leave the memory out");
  require(row.memory != nullptr, ErrorKind::bad_argument, kOp, "a ", c.family,
          " model looks at the states of an encoder; give a memory with every row");
  require(row.memory->fits(c), ErrorKind::bad_shape, kOp,
          "the memory was made for another model; make it with this one");
}

}  // namespace

DecoderPass::DecoderPass(const Decoder& model, std::span<const DecoderRow> rows, KvCache& cache,
                         DecoderStep& step, Context& ctx)
    : model_(model),
      c_(model.config()),
      cut_{model.options_.team},
      heads_(cut_.heads(c_).size),
      kv_heads_(cut_.kv_heads(c_).size),
      rows_(rows),
      cache_(cache),
      step_(step),
      ctx_(ctx),
      n_(static_cast<Index>(rows.size())) {
  require(cut_.ranks() == 1 || (!step.watch && !step.look && !cache.split()), ErrorKind::unsupported, kOp,
          "heads are cut over ", cut_.ranks(),
          " ranks, where statistics and policies of single heads are not there yet; use one rank");
  const KeyShare share = model.key_share();
  require(share.ranks == 1 || (!step.watch && !cache.split()), ErrorKind::unsupported, kOp,
          "keys are shared out over ", share.ranks,
          " ranks, where statistics and policies of single heads are not there yet; use one rank");
  find_runs();
}

void DecoderPass::find_runs() {
  for (Index i = 0; i < n_;) {
    const SequenceId id = rows_[at(i)].sequence;
    const Index begin = cache_.length(id);
    Index end = i;
    for (; end < n_ && rows_[at(end)].sequence == id; ++end) {
      const TokenId token = rows_[at(end)].token;
      require(token >= 0 && token < c_.vocabulary, ErrorKind::bad_argument, kOp, "got token ", token,
              "; ids run from 0 to ", c_.vocabulary - 1);
      positions_.push_back(begin + end - i);
      if (rows_[at(end)].logits) asked_.push_back(end);
      check_memory(c_, rows_[at(end)]);
    }
    require(positions_.back() < c_.positions, ErrorKind::bad_argument, kOp, "the text has more than ",
            c_.positions, " tokens, the model's longest");
    const Index most = cache_.most_rows(id);
    require(end - i <= most, ErrorKind::bad_argument, kOp, "sequence ", id, " has ", end - i,
            " rows, but heads that weigh tokens decide after ", most, "; compute at most so many at once");
    const bool single = end - i == 1;
    if (!(single && !runs_.empty() && runs_.back().singles)) runs_.push_back({.first = i, .singles = single});
    Run& run = runs_.back();
    for (const SequenceId other : run.sequences)
      require(other != id, ErrorKind::bad_argument, kOp, "rows of sequence ", id,
              " do not stand together; give them one after another");
    run.rows += end - i;
    run.sequences.push_back(id);
    run.lengths.push_back(begin + end - i);
    i = end;
  }
}

AnyView DecoderPass::scratch(Scratch which, Index rows, Index columns, DType dtype) {
  if (step_.scratch_.size() <= static_cast<std::size_t>(which))
    step_.scratch_.resize(static_cast<std::size_t>(which) + 1);
  Tensor& held = step_.scratch_[static_cast<std::size_t>(which)];
  if (held.view().count() < rows * columns || held.dtype() != dtype)
    held = Tensor(dtype, {std::max(rows, Index{16}), columns});
  return AnyView::packed(held.view().data, dtype, {rows, columns});
}

void DecoderPass::run() {
  if (n_ == 0) return;
  x_ = scratch(Scratch::x, n_, c_.model_dim), other_ = scratch(Scratch::y, n_, c_.model_dim);
  step_.heads_.assign(step_.watch ? asked_.size() : 0, {});
  for (HeadStats& h : step_.heads_)
    for (auto* part : {&h.entropy, &h.top_weight, &h.first_mass}) part->assign(at(c_.layers * c_.heads), 0);
  embed();
  if (step_.see_rows) step_.see_rows(0, x_);
  for (Index layer = 0; layer < c_.layers; ++layer) {
    attention(layer);
    if (c_.cross) cross(layer);
    if (step_.parts.feed) feed(layer);
    if (step_.see_rows) step_.see_rows(layer + 1, x_);
  }
  logits();
}

void DecoderPass::embed() {
  for (Index i = 0; i < n_; ++i) {
    float* row = static_cast<float*>(x_.data) + i * c_.model_dim;
    model_.weights_.embed.read_row(rows_[at(i)].token, row);
    if (c_.embed_scale == 1) continue;
    for (Index d = 0; d < c_.model_dim; ++d)
      row[d] = static_cast<float>(static_cast<double>(row[d]) * c_.embed_scale);
  }
  if (!c_.learned_positions) return;
  embedding(model_.weights_.positions.view(), AnyView::packed(positions_.data(), DType::i64, {n_}), 1, other_,
            ctx_);
  auto* x = static_cast<float*>(x_.data);
  const auto* p = static_cast<const float*>(other_.data);
  for (Index i = 0; i < n_ * c_.model_dim; ++i) x[i] += p[i];
}

void DecoderPass::norm(const NormWeights& w, const AnyView& from, const AnyView& to) {
  if (c_.norm == NormKind::layer)
    layer_norm({.x = from, .weight = w.weight.view(), .bias = w.bias.view(), .out = to, .eps = c_.eps}, ctx_);
  else
    rms_norm(from, w.weight.view(), to, {.eps = c_.eps, .weight_form = c_.norm_weight}, ctx_);
}

void DecoderPass::norm_part(const NormWeights& w, const AnyView& from, const AnyView& to) {
  if (step_.parts.norms) return norm(w, from, to);
  if (from.data != to.data)
    std::copy_n(static_cast<const float*>(from.data), from.count(), static_cast<float*>(to.data));
}

void DecoderPass::product(const StoredMatrix& matrix, const Product& p, const float* bias,
                          Index first_column) {
  const auto rows = [](const AnyView& v, Index column) -> StoredRows {
    return v.given() ? StoredRows{static_cast<float*>(v.data) + column, v.step[0]} : StoredRows{};
  };
  matrix.multiply({.rows = p.x.size[0],
                   .x = rows(p.x, 0),
                   .out = rows(p.out, first_column),
                   .factor = rows(p.factor, first_column),
                   .residual = rows(p.residual, first_column),
                   .bias = bias,
                   .activation = p.activation,
                   .rounded = model_.options_.rounded_rows && is_quantized(matrix.format())},
                  ctx_);
}

void DecoderPass::product(const ProductWeights& w, const Product& p) {
  const float* bias = w.bias.view().given() ? w.bias.values<const float>().data() : nullptr;
  Index column = 0;
  for (const StoredMatrix& m : w.matrices) {
    product(m, p, bias != nullptr ? bias + column : nullptr, column);
    column += m.out();
  }
}

AnyView DecoderPass::joined(const AnyView& own, Index columns) {
  if (cut_.ranks() == 1) return own;
  const AnyView whole = scratch(Scratch::joined, n_, columns);
  cut_.team->gather(own, whole, 1, "columns of a decoder");
  return whole;
}

void DecoderPass::whole_product(const ProductWeights& w, Product p) {
  if (cut_.ranks() == 1) return product(w, p);
  const Slice own = cut_.of(p.out.size[1]);
  const AnyView whole = p.out;
  p.out = scratch(Scratch::own, n_, own.size);
  if (p.residual.given()) p.residual.data = static_cast<float*>(p.residual.data) + own.begin;
  product(w, p);
  cut_.team->gather(p.out, whole, 1, "columns of a decoder");
}

AnyView DecoderPass::heads_of(const AnyView& rows, Index first_column, Index heads) const {
  AnyView v;
  v.data = static_cast<std::byte*>(rows.data) + first_column * size_of(rows.dtype);
  v.dtype = rows.dtype, v.rank = 4;
  v.size[0] = 1, v.size[1] = rows.size[0], v.size[2] = heads, v.size[3] = c_.head_dim;
  v.step[0] = rows.step[0] * rows.size[0], v.step[1] = rows.step[0], v.step[2] = c_.head_dim, v.step[3] = 1;
  return v;
}

void DecoderPass::turn(Index layer, const AnyView& q, const AnyView& k) {
  if (c_.head_norms) {
    const DecoderLayer& w = model_.weights_.layers[at(layer)];
    const RmsNormOptions options{.eps = c_.eps, .weight_form = c_.norm_weight};
    rms_norm(q, w.q_norm.view(), q, options, ctx_);
    rms_norm(k, w.k_norm.view(), k, options, ctx_);
  }
  if (c_.learned_positions) return;
  const AnyView positions = AnyView::packed(positions_.data(), DType::i64, {n_});
  const bool sliding = c_.window(layer) > 0;
  const std::optional<RopeTable>& table = sliding ? model_.sliding_turns_ : model_.turns_;
  for (const AnyView& x : {q, k}) {
    if (table.has_value())
      rope(x, positions, x, *table, ctx_);
    else
      rope(x, positions, x, sliding ? c_.sliding_rope : c_.rope, ctx_);
  }
}

void DecoderPass::attention(Index layer) {
  const DecoderLayer& w = model_.weights_.layers[at(layer)];
  const Index q_columns = heads_ * c_.head_dim, kv_columns = kv_heads_ * c_.head_dim;
  const AnyView normed = scratch(Scratch::normed, n_, c_.model_dim);
  const AnyView qkv = scratch(Scratch::qkv, n_, q_columns + 2 * kv_columns);
  const AnyView attended = scratch(Scratch::attended, n_, q_columns);
  norm_part(w.norm_1, x_, normed);
  product(w.qkv, {.x = normed, .out = qkv});
  const AnyView q = heads_of(qkv, 0, heads_), k = heads_of(qkv, q_columns, kv_heads_);
  const AnyView v = heads_of(qkv, q_columns + kv_columns, kv_heads_);
  turn(layer, q, k);
  if (step_.look) step_.look(layer, q, k, v);
  const auto tokens_of = [](const AnyView& heads, Index first, Index rows) {  // [tokens kv_heads dim]
    AnyView t;
    t.data = static_cast<float*>(heads.data) + first * heads.step[1];
    t.dtype = heads.dtype, t.rank = 3;
    for (int axis = 0; axis < 3; ++axis)
      t.size[axis] = heads.size[axis + 1], t.step[axis] = heads.step[axis + 1];
    t.size[0] = rows;
    return t;
  };
  for (const Run& run : runs_) {
    const Index each = run.singles ? 1 : run.rows;
    for (std::size_t s = 0; s < run.sequences.size(); ++s) {
      const Index first = run.first + static_cast<Index>(s);
      cache_.write(run.sequences[s], layer, tokens_of(k, first, each), tokens_of(v, first, each), ctx_);
    }
    attend_all(layer, run, q, heads_of(attended, 0, heads_));
  }
  const AnyView all = joined(attended, c_.heads * c_.head_dim);
  if (step_.edit) step_.edit(AttentionPart::own, layer, all);
  if (c_.norms_behind) {
    whole_product(w.out, {.x = all, .out = other_});
    add(w.behind_1, other_);
  } else {
    whole_product(w.out, {.x = all, .out = other_, .residual = residual()});
    std::swap(x_, other_);
  }
}

/// Heads do not meet before the output product, so a call for each of them has the bits of one call for all.
void DecoderPass::attend_all(Index layer, const Run& run, const AnyView& q, const AnyView& out) {
  const Index window = c_.window(layer);
  const Mask* const open = step_.open ? step_.open(AttentionPart::own, layer) : nullptr;
  const Mask all = window > 0 ? Mask::sliding(window) : Mask::causal(), seen = open ? all & *open : all;
  if (!cache_.split()) return attend({layer, 0, &cache_, layer, &seen}, run, q, out);
  const Index group = c_.heads / c_.kv_heads;
  const auto some = [&](AnyView v, Index first) {
    v.data = static_cast<float*>(v.data) + first * v.step[2];
    v.size[2] = group;
    return v;
  };
  for (Index h = 0; h < c_.kv_heads; ++h) {
    const KvCache::Head head = cache_.head(layer, h);
    Mask own = seen;
    if (head.policy->window > 0) {
      const Mask last = Mask::sliding(head.policy->window);
      own = seen & (head.policy->first > 0 ? Mask::prefix(head.policy->first) | last : last);
    }
    Keys keys{layer, h * group, head.cache, head.slot, &own};
    if (head.policy->weighs()) {
      keys.kv_head = h;
      attend_weighed(head, keys, run, some(q, h * group), some(out, h * group));
    } else {
      attend(keys, run, some(q, h * group), some(out, h * group));
    }
  }
}

void DecoderPass::attend(const Keys& keys, const Run& run, const AnyView& q, const AnyView& out) {
  const auto part = [&](const AnyView& all) {
    AnyView v = all;
    v.data = static_cast<float*>(all.data) + run.first * all.step[1];
    v.size[0] = run.singles ? run.rows : 1, v.size[1] = run.singles ? 1 : run.rows;
    v.step[0] = all.step[1];
    return v;
  };
  static constexpr Index kEnd = kStartEnd;
  const DType dtype = keys.cache->dtype();
  AttentionArgs args;
  args.q = part(q), args.out = part(out);
  args.mask = keys.mask->set();
  args.inputs.scale = model_.scale_.view();
  args.inputs.softcap = c_.attention_softcap;
  args.q_start = ConstView::packed(&kEnd, DType::i64, {1});
  // Keys of 16 bits meet queries of 16 bits: both are rounded once.
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  const AnyView wide_q = args.q, wide_out = args.out;
  if (half) {
    const Index columns = q.size[2] * c_.head_dim;
    args.q.data = scratch(Scratch::q16, run.rows, columns, dtype).data;
    args.q.dtype = dtype, args.q.step[0] = args.q.step[1] = columns;
    args.out = args.q;
    args.out.data = scratch(Scratch::out16, run.rows, columns, dtype).data;
    convert(wide_q, args.q, ctx_);
  }
  const KvCache& cache = *keys.cache;
  KvTable table = cache.table(run.sequences, run.lengths);
  args.k = cache.k(keys.slot), args.v = cache.v(keys.slot);
  args.k_scale = cache.k_scale(keys.slot), args.v_scale = cache.v_scale(keys.slot);
  args.page_table = table.view();
  if (is_watched(run) || keys.kv_head >= 0)
    attend_watched(keys, run, args);
  else if (model_.key_share().ranks > 1)
    attend_shared(args);
  else
    step_.plans_.forward(problem_of(args), ctx_).run(args, ctx_);
  if (half) convert(args.out, wide_out, ctx_);
}

bool DecoderPass::is_watched(const Run& run) const {
  if (!step_.watch) return false;
  const auto first = std::lower_bound(asked_.begin(), asked_.end(), run.first);
  return first != asked_.end() && *first < run.first + run.rows;
}

/// What the heads of the rows do, from probes beside the same bits of out.
void DecoderPass::attend_watched(const Keys& keys, const Run& run, AttentionArgs args) {
  const Index tokens = *std::max_element(run.lengths.begin(), run.lengths.end());
  const Index heads = args.q.size[2], q = run.rows;
  const bool rows = is_watched(run);
  ProbeSpec probe;
  if (rows) probe.rows = true, probe.classes = 1, ask_rows(args.q, tokens, args);
  if (keys.kv_head >= 0) {  // of one sequence
    probe.picked = q * heads;
    looks_.weights = Tensor(DType::f32, {q * heads, tokens});
    looks_.picks.clear();
    for (Index row = 0; row < q; ++row)
      for (Index head = 0; head < heads; ++head)
        for (const Index n : {Index{0}, head, row}) looks_.picks.push_back(n);
    args.probe.picks = AnyView::packed(looks_.picks.data(), DType::i64, {q * heads, 3});
    args.probe.picked_weights = looks_.weights.view();
  }
  step_.plans_.forward(problem_of(args, probe), ctx_).run(args, ctx_);
  if (keys.kv_head >= 0)
    cache_.weigh(run.sequences[0], keys.layer, keys.kv_head,
                 {q, heads, tokens, looks_.weights.values<const float>().data()});
  if (rows) take_rows(keys, run, heads);
}

/// Room for entropy, largest weight and weight on the first token; every sequence has the same classes.
void DecoderPass::ask_rows(const AnyView& q, Index tokens, AttentionArgs& args) {
  const Index batch = q.size[0], rows = q.size[1], heads = q.size[2];
  if (looks_.entropy.view().count() < batch * heads * rows)
    for (Tensor* t : {&looks_.entropy, &looks_.top, &looks_.mass})
      *t = Tensor(DType::f32, {batch * heads * rows});
  if (std::ssize(looks_.classes) < tokens) {
    looks_.classes.assign(at(tokens), -1);
    looks_.classes[0] = 0;
  }
  const auto room = [&](Tensor& t) {
    return AnyView::packed(t.view().data, DType::f32, {batch, heads, rows});
  };
  args.probe.entropy = room(looks_.entropy), args.probe.top_weight = room(looks_.top);
  args.probe.class_of = AnyView::packed(looks_.classes.data(), DType::i32, {batch, tokens});
  args.probe.class_of.step[0] = 0;
  args.probe.class_mass = AnyView::packed(looks_.mass.view().data, DType::f32, {batch, heads, rows, 1});
}

void DecoderPass::take_rows(const Keys& keys, const Run& run, Index heads) {
  const Index rows = run.singles ? 1 : run.rows;  // of a sequence
  const auto entropy = looks_.entropy.values<float>(), top = looks_.top.values<float>(),
             mass = looks_.mass.values<float>();
  for (std::size_t a = 0; a < asked_.size(); ++a) {
    const Index row = asked_[a] - run.first;
    if (row < 0 || row >= run.rows) continue;
    HeadStats& h = step_.heads_[a];
    for (Index head = 0; head < heads; ++head) {
      const std::size_t to = at(keys.layer * c_.heads + keys.first_head + head);
      const std::size_t from = at((row / rows * heads + head) * rows + row % rows);
      h.entropy[to] = entropy[from], h.top_weight[to] = top[from], h.first_mass[to] = mass[from];
    }
  }
}

/// Sequence by sequence, since each has closed other pages.
void DecoderPass::attend_weighed(const KvCache::Head& head, const Keys& keys, const Run& run,
                                 const AnyView& q, const AnyView& out) {
  const Index each = head.cache->page_tokens();
  for (std::size_t s = 0; s < run.sequences.size(); ++s) {
    Run one{.first = run.first + static_cast<Index>(s),
            .rows = run.singles ? 1 : run.rows,
            .singles = run.singles};
    one.sequences = {run.sequences[s]}, one.lengths = {run.lengths[s]};
    const std::vector<bool>& closed = head.cache->closed_pages(run.sequences[s]);
    Mask own = *keys.mask;
    if (std::find(closed.begin(), closed.end(), true) != closed.end()) {
      std::vector<std::uint8_t> open(at(run.lengths[s]), 1);
      for (std::size_t k = 0; k < open.size(); ++k) {
        const std::size_t page = k / at(each);
        open[k] = page < closed.size() && closed[page] ? 0 : 1;
      }
      own = own & Mask::dense(AnyView::packed(open.data(), DType::u8, {1, run.lengths[s]}));
    }
    Keys mine = keys;
    mine.mask = &own;
    attend(mine, one, q, out);
  }
}

void DecoderPass::add(const NormWeights& behind, const AnyView& y) {
  norm_part(behind, y, y);
  auto* x = static_cast<float*>(x_.data);
  const auto* more = static_cast<const float*>(y.data);
  for (Index i = 0; i < n_ * c_.model_dim; ++i) x[i] = (step_.parts.residual ? x[i] : 0) + more[i];
}

void DecoderPass::feed(Index layer) {
  const DecoderLayer& w = model_.weights_.layers[at(layer)];
  const AnyView normed = scratch(Scratch::normed, n_, c_.model_dim);
  const Index columns = cut_.of(c_.feed_dim).size;
  const AnyView up = scratch(Scratch::up, n_, columns), hidden = scratch(Scratch::hidden, n_, columns);
  norm_part(w.norm_2, x_, normed);
  if (c_.gated) {
    product(w.up, {.x = normed, .out = up});
    product(w.gate, {.x = normed, .out = hidden, .factor = up, .activation = c_.activation});
  } else {
    product(w.up, {.x = normed, .out = hidden, .activation = c_.activation});
  }
  const AnyView all = joined(hidden, c_.feed_dim);
  if (c_.norms_behind) {
    whole_product(w.down, {.x = all, .out = other_});
    add(w.behind_2, other_);
  } else {
    whole_product(w.down, {.x = all, .out = other_, .residual = residual()});
    std::swap(x_, other_);
  }
}

void DecoderPass::logits() {
  const auto asked = static_cast<Index>(asked_.size());
  step_.vocabulary_ = c_.vocabulary;
  if (asked == 0) return;
  if (step_.logits_.view().count() < asked * c_.vocabulary)
    step_.logits_ = Tensor(DType::f32, {asked, c_.vocabulary});
  const AnyView normed = scratch(Scratch::normed, n_, c_.model_dim);
  for (Index i = 0; i < asked; ++i)
    norm(model_.weights_.norm, some_rows(x_, asked_[at(i)], 1), some_rows(normed, i, 1));
  const AnyView out = AnyView::packed(step_.logits_.view().data, DType::f32, {asked, c_.vocabulary});
  product(model_.weights_.logits(), {.x = some_rows(normed, 0, asked), .out = out}, nullptr, 0);
  if (c_.logit_softcap == 0) return;
  auto* l = static_cast<float*>(out.data);
  for (Index i = 0; i < asked * c_.vocabulary; ++i)
    l[i] = static_cast<float>(c_.logit_softcap * std::tanh(static_cast<double>(l[i]) / c_.logit_softcap));
}

}  // namespace headwise
