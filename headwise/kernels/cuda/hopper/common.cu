#include "headwise/kernels/cuda/hopper/common.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda::hopper {

double scale_of(const AttentionProblem& p, const AttentionArgs& a) {
  return a.inputs.scale.given() ? load_double(a.inputs.scale.data, a.inputs.scale.dtype, 0)
                                : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
}

void hopper_refuses(const AttentionProblem& p, char (&why)[kSentenceBytes], HopperTakes takes) {
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  why[0] = '\0';
  const int device = p.device.index;
  const RunFacts& run = p.run;
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
  if (forward_widths(h.q.dim, h.v.dim).head == 0)
    return say("head_dim %lld and value_dim %lld; it takes multiples of 8 up to 256",
               static_cast<long long>(h.q.dim), static_cast<long long>(h.v.dim));
  if (h.q.group != 1 || h.k.group != h.v.group) return say("k and v are shared by different groups of heads");
  if (h.terms.bias && !takes.pairs) return say("a bias");
  if (h.terms.bias && run.wide_bias) return say("a bias of f64");
  if (h.terms.relative) return say("relative positions");
  if (run.large_softcap) return say("a softcap above 4096, where its tanh loses digits");
  if (h.terms.dropout && !takes.pairs) return say("dropout");
  ProbeSpec other = p.probe;
  other.rows = false;
  if (other.any()) return say("probes of single weights; it takes the statistics of rows");
  if (p.kv_tokens == 0) return say("there are no keys");
  if (run.scales > 1) return say("a scale for each head");
  if (run.large_scale) return say("a scale of 10,000 or more; it takes scales below");
  if (const auto form = static_cast<BandForm>(run.mask); form != BandForm::band)
    return say("%s", words_of(form));
  if (run.block_keys && !takes.blocks) return say("blocks(...) is no single band of keys");
  if (run.far) return say("positions past 2^29");
  say_unfit(p, {{"q", RunFacts::q}, {"k", RunFacts::k}, {"v", RunFacts::v}, {"out", RunFacts::out}}, why);
}

void say_unfit(const AttentionProblem& p, std::initializer_list<NamedView> views,
               char (&why)[kSentenceBytes]) {
  for (const auto& [name, view] : views) {
    const bool keys = view == RunFacts::k || view == RunFacts::v;
    const auto need = static_cast<CopyNeed>(p.run.unfit[view]);
    if (const char* words = words_of(need, keys ? p.kv_dtype() : p.dtype))
      return void(std::snprintf(why, sizeof why, "%s; its tiles need %s", name, words));
  }
}

Status send_ids(const AnyView& ids, Index count, Index* to, cudaStream_t stream) {
  constexpr Index kPiece = 256;
  for (Index first = 0; first < count; first += kPiece) {
    Index some[kPiece];
    const Index here = min_of(kPiece, count - first);
    for (Index i = 0; i < here; ++i) some[i] = static_cast<const Index*>(ids.data)[(first + i) * ids.step[0]];
    const Status status = upload(to + first, some, static_cast<std::size_t>(here) * sizeof(Index), stream);
    if (!status.ok()) return status;
  }
  return {};
}

bool bias_map(const AttentionProblem& p, const AnyView& bias, int box_rows, MapSpec& spec) {
  if (bias.dtype != p.dtype || (bias.step[2] == 0 && bias.size[2] > 1)) return false;
  AnyView v = bias;  // [batch q heads kv], axes that share their numbers once
  v.size[1] = bias.size[2], v.step[1] = bias.step[2], v.size[2] = bias.size[1], v.step[2] = bias.step[1];
  for (const int axis : {0, 2})
    if (v.step[axis] == 0) v.size[axis] = 1;
  if (v.size[1] == 1 && p.q_tokens > 1) return false;
  if (copy_need(v) != CopyNeed::none) return false;
  spec = map_spec(p, v, box_rows, 0);
  return true;
}

Status sequence_places(const AttentionProblem& p, const AttentionArgs& a, StreamState& state,
                       const PlaceTable& room, Place& place, const Place*& places) {
  const std::size_t scratch_before = room.scratch_before;
  const Sequences which = room.which;
  Band band;
  const char* part = nullptr;
  band_of(a.mask, 0, band, part);
  const bool table = !alike(p, a, band);
  const Index pieces = pieces_of(band), count = p.batch * pieces;
  const std::size_t bytes = table ? static_cast<std::size_t>(count) * sizeof(Place) : 0;
  const Status reserved = state.reserve(room.counters, scratch_before + bytes);
  if (!reserved.ok()) return reserved;
  const auto place_at = [&](Index b, Index piece, Place& to) {
    place_for(p, a, b, piece, band, to);
    if (which == Sequences::all) return;
    const SequenceLocation s = place_of(p, a, b);
    if (decode_suits(s.q_tokens, s.kv_tokens, p.heads.k.group) != (which == Sequences::decode))
      to.q_tokens = 0;
  };
  place_at(0, 0, place);
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
      place_at(b, (first + i) % pieces, some[i]);
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

}  // namespace headwise::cuda::hopper
