// cuda/phase: cuda/hopper for every number of queries, so that decode, chunks and prefill have the same bits;
// one query of each head in a group shares a tile with the others.
#include "headwise/kernels/cuda/inputs/places.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::hopper {
namespace {

/// Sequences whose keys are counted on the stack; with more of them that differ, every head has its own tile.
constexpr Index kMostCounted = 4096;

/// One query sees one run of keys from key 0 on, so the heads of a group can be rows of one tile, where
/// nothing else is asked by head.
bool shares_tiles(const AttentionProblem& p, const AttentionArgs& a, const Band& band) {
  const Terms& t = p.heads.terms;
  const bool by_head = t.alibi || t.bias || t.sinks || t.dropout || t.gate || p.probe.rows;
  return p.q_tokens == 1 && p.heads.k.group > 1 && !p.ragged && !by_head && !band.documents && !band.blocks &&
         band.back == kFar && (alike(p, a, band) || p.batch <= kMostCounted);
}

/// Heads [first, first + group) become rows: [batch 1 heads dim] as [batch group kv_heads dim].
AnyView heads_as_rows(AnyView v, Index group) {
  v.size[1] = group, v.size[2] /= group;
  v.step[1] = v.step[2], v.step[2] *= group;
  return v;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  Band band;
  const char* why = nullptr;
  band_of(a.mask, 0, band, why);
  if (!shares_tiles(p, a, band)) return forward::kAttend.run(p, a, device, stream);
  const Index group = p.heads.k.group, kv_heads = p.heads.k.slots();
  AttentionProblem rows = p;
  rows.q_tokens = group;
  for (HeadLayout* h : {&rows.heads.q, &rows.heads.k, &rows.heads.v}) h->heads = kv_heads, h->group = 1;
  AttentionArgs there = a;
  there.q = heads_as_rows(a.q, group), there.out = heads_as_rows(a.out, group);
  if (p.lse) {  // [batch heads q]
    there.lse.size[1] = kv_heads, there.lse.size[2] = group;
    there.lse.step[2] = a.lse.step[1], there.lse.step[1] = a.lse.step[1] * group;
  }
  // The mask is the number of keys the one query sees.
  const auto keys_of = [&](Index b) {
    Band own;
    Place place{};
    band_of(a.mask, b, own, why);
    place_for(p, a, b, 0, own, place);
    return min_of(max_of(place.q_start + own.ahead + 1, 0), Index{place.kv_tokens});
  };
  Index keys[kMostCounted];
  MaskView mask;
  if (alike(p, a, band)) {
    mask = MaskView::prefix(keys_of(0));
  } else {
    for (Index b = 0; b < p.batch; ++b) keys[b] = keys_of(b);
    mask = MaskView::one({.op = MaskOp::lengths, .offsets = keys, .n = p.batch});
  }
  there.mask = {&mask, 1};
  there.q_start = {};
  return forward::kAttend.run(rows, there, device, stream);
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) { forward::kAttend.refuse(p, why); }
void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  forward::kAttend.numerics(p, words);
}

}  // namespace

const Kernel kPhase = {"cuda/phase", refuse, run, numerics};

}  // namespace headwise::cuda::hopper
