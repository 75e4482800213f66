#include "headwise/kernels/cuda/hopper/common.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda {
const char* copy_refuses(const AnyView& v) {
  if (v.step[3] != 1) return "a last step of 1";
  for (int axis = 0; axis < 3; ++axis) {
    if (v.size[axis] > 1 && v.step[axis] * size_of(v.dtype) % 16 != 0)
      return size_of(v.dtype) == 1 ? "steps that are multiples of 16 elements"
                                   : "steps that are multiples of 8 elements";
    if (v.step[axis] >= Index{1} << 38) return "steps below 2^38 elements";
    if (v.size[axis] > kFar) return "sizes up to 2^29";
  }
  if (reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0) return "an address that is a multiple of 16";
  return nullptr;
}

constexpr double kMostSoftcap = 4096;

double scale_of(const AttentionProblem& p, const AttentionArgs& a) {
  return a.inputs.scale.given() ? load_double(a.inputs.scale.data, a.inputs.scale.dtype, 0)
                                : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
}

void hopper_refuses(const AttentionProblem& p, const AttentionArgs& a, int device,
                    char (&why)[kSentenceBytes], HopperTakes takes) {
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  why[0] = '\0';
  const DeviceFacts facts = facts_of(device);
  const HeadSpec& h = p.heads;
  if (!facts.there) return say("there is no CUDA device %d", device);
  if (facts.major != 9)
    return say("device %d is of capability %d.%d; it needs 9.0", device, facts.major, facts.minor);
  if (p.eight_bit_kv() && !takes.eight_bits) return say(kEightRefused, name_of(p.kv_dtype()).data());
  if (const char* heads = special_heads(p)) return say("%s", heads);
  if (p.dtype != DType::bf16 && p.dtype != DType::f16)
    return say("dtype %s; it takes bf16 and f16", name_of(p.dtype).data());
  if (h.q.row || h.k.row || h.v.row) return say("heads that lie in rows; it takes [batch tokens heads dim]");
  if (!forward_takes(h.q.dim, h.v.dim))
    return say(
        "head_dim %lld and value_dim %lld; it takes 64, 96, 128, 192 and 256 of both, and 192 with 128",
        static_cast<long long>(h.q.dim), static_cast<long long>(h.v.dim));
  if (h.q.group != 1 || h.k.group != h.v.group) return say("k and v are shared by different groups of heads");
  if (h.terms.bias && !takes.pairs) return say("a bias");
  if (h.terms.bias && a.inputs.bias.dtype == DType::f64) return say("a bias of f64");
  if (h.terms.relative) return say("relative positions");
  // tanh comes out to 1e-7 of the cap: past this a score of 1 would keep fewer digits than bf16 has.
  if (h.terms.softcap && a.inputs.softcap > kMostSoftcap)
    return say("a softcap of %g; it takes up to %g", a.inputs.softcap, kMostSoftcap);
  if (h.terms.dropout && !takes.pairs) return say("dropout");
  ProbeSpec other = p.probe;
  other.rows = false;
  if (other.any()) return say("probes of single weights; it takes the statistics of rows");
  if (p.kv_tokens == 0) return say("there are no keys");
  if (a.inputs.scale.given() && a.inputs.scale.size[0] != 1) return say("a scale for each head");
  if (a.inputs.scale.given() && !(std::fabs(scale_of(p, a)) < 1e4))
    return say("a scale of %g; it takes scales below 10,000", scale_of(p, a));
  Band band;
  const char* part = nullptr;
  if (!band_of(a.mask, 0, band, part)) return say("%s", part);
  if (band.blocks && !takes.blocks) return say("blocks(...) is no single band of keys");
  for (Index b = 0; b < p.batch; ++b) {
    Place place;
    if (!place_for(p, a, b, 0, band, place)) return say("positions past 2^29");
    if (alike(p, a, band)) break;
  }
  if (!a.q.data) return;
  for (const auto& [name, view] :
       {std::pair<const char*, const AnyView*>{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"out", &a.out}})
    if (const char* need = copy_refuses(*view)) return say("%s; its tiles need %s", name, need);
}

Status sequence_places(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, Index counters,
                       std::size_t scratch_before, Place& place, const Place*& places) {
  Band band;
  const char* part = nullptr;
  band_of(a.mask, 0, band, part);
  const bool table = !alike(p, a, band);
  const Index pieces = pieces_of(band), count = p.batch * pieces;
  const std::size_t bytes = table ? static_cast<std::size_t>(count) * sizeof(Place) : 0;
  const Status reserved = state.reserve(counters, scratch_before + bytes);
  if (!reserved.ok()) return reserved;
  place_for(p, a, 0, 0, band, place);
  places = nullptr;
  if (!table) return {};
  // A table goes over in pieces that fit launch arguments; the longest sequence stands for all in choices.
  auto* to = reinterpret_cast<Place*>(state.scratch + scratch_before);
  constexpr Index kPiece = static_cast<Index>(kUploadBytes / sizeof(Place));
  for (Index first = 0; first < count; first += kPiece) {
    Place some[kPiece];
    const Index here = min_of(kPiece, count - first);
    for (Index i = 0; i < here; ++i) {
      const Index b = (first + i) / pieces;
      band_of(a.mask, b, band, part);
      place_for(p, a, b, (first + i) % pieces, band, some[i]);
      if (some[i].q_tokens > place.q_tokens ||
          (some[i].q_tokens == place.q_tokens && some[i].kv_tokens > place.kv_tokens))
        place = some[i];
    }
    const Status status =
        upload(to + first, some, static_cast<std::size_t>(here) * sizeof(Place), state.stream);
    if (!status.ok()) return status;
  }
  places = to;
  return {};
}

}  // namespace headwise::cuda
