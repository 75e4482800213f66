// Cross-attention of a decoder: rows look at the keys and values of their memory.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/forward/memory.h"
#include "headwise/decoder/forward/pass.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace

void DecoderPass::cross(Index layer) {
  const DecoderLayer& w = model_.weights_.layers[at(layer)];
  const Index columns = c_.heads * c_.head_dim;
  const AnyView normed = scratch(Scratch::normed, n_, c_.model_dim),
                rows = scratch(Scratch::qkv, n_, columns);
  const AnyView attended = scratch(Scratch::attended, n_, columns);
  norm_part(w.cross_norm, x_, normed);
  product(w.cross_q, {.x = normed, .out = rows});
  const AnyView q = heads_of(rows, 0, c_.heads), out = heads_of(attended, 0, c_.heads);
  for (Index first = 0, end = 0; first < n_; first = end) {
    while (end < n_ && rows_[at(end)].memory == rows_[at(first)].memory) ++end;
    attend_memory(layer, first, end - first, q, out);
  }
  if (step_.edit) step_.edit(AttentionPart::cross, layer, attended);
  product(w.cross_out, {.x = attended, .out = other_, .residual = residual()});
  std::swap(x_, other_);
}

void DecoderPass::attend_memory(Index layer, Index first, Index rows, const AnyView& q, const AnyView& out) {
  const DecoderMemory& memory = *rows_[at(first)].memory;
  const auto part = [&](AnyView v) {
    v.data = static_cast<float*>(v.data) + first * v.step[1];
    v.size[1] = rows;
    return v;
  };
  AttentionArgs args;
  args.q = part(q), args.out = part(out);
  args.k = memory.k(layer), args.v = memory.v(layer);
  args.inputs.scale = model_.scale_.view();
  args.inputs.softcap = c_.attention_softcap;
  if (const Mask* const open = step_.open ? step_.open(AttentionPart::cross, layer) : nullptr)
    args.mask = open->set();
  std::vector<Index> picks;
  std::vector<std::size_t> watched;  // of asked_
  for (std::size_t a = 0; step_.watch && a < asked_.size(); ++a) {
    if (asked_[a] < first || asked_[a] >= first + rows) continue;
    watched.push_back(a);
    for (Index head = 0; head < c_.heads; ++head)
      for (const Index n : {Index{0}, head, asked_[a] - first}) picks.push_back(n);
  }
  const Index count = std::ssize(watched) * c_.heads, each = c_.heads * memory.tokens();
  ProbeSpec probe;
  Tensor weights;
  if (count > 0) {
    probe.picked = count;
    weights = Tensor(DType::f32, {count, memory.tokens()});
    args.probe.picks = AnyView::packed(picks.data(), DType::i64, {count, 3});
    args.probe.picked_weights = weights.view();
  }
  step_.plans_.forward(problem_of(args, probe), ctx_).run(args, ctx_);
  for (std::size_t i = 0; i < watched.size(); ++i) {
    std::vector<float>& all = step_.heads_[watched[i]].cross_weights;
    all.resize(at(c_.layers * each));
    std::copy_n(weights.values<float>().begin() + static_cast<Index>(i) * each, each,
                all.begin() + layer * each);
  }
}

}  // namespace headwise
