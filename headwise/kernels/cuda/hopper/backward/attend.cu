// cuda/hopper_backward: when Hopper's gradients take a problem, how they cut it, and their start.
#include <cstdint>
#include <cstdio>

#include "headwise/kernels/cuda/hopper/backward/rows.h"
#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::hopper::backward {
namespace {

constexpr double kL2Share = 28e6;  // bytes of q, dout and sums of dq a section may hold: about half of L2
/// Heads that share k and v are cut into parts until there are so many (kv head, part). With fewer, a batch
/// of one has long chains of tiles that wait for each other's turn, and the longest is the kernel's tail. A
/// constant of the heads: bits must not depend on the batch or on the device's size. In short sequences the
/// parts' sums cost more than they bring.
constexpr Index kUnits = 32;

int width_of(const AttentionProblem& p) { return backward_width(p.heads.q.dim, p.heads.v.dim); }

/// Terms of single pairs, which have an instance of their own.
bool has_pairs(const AttentionProblem& p) { return p.heads.terms.bias || p.heads.terms.dropout; }

Index parts_of(const AttentionProblem& p) {
  const Index group = p.heads.k.group, slots = p.heads.k.slots();
  Index parts = 1;
  if (backward_sweeps(width_of(p)) || p.q_tokens < kSplitQueries) return parts;
  while (parts * slots < kUnits && parts < group) {
    do ++parts;
    while (group % parts != 0);
  }
  return parts;
}

void refuse(const BackwardProblem& problem, char (&why)[kSentenceBytes]) {
  const AttentionProblem& p = problem.forward;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (!p.lse) return say("the forward kept no lse; it needs out and lse");
  AttentionProblem all_rows = p;  // a row that is not listed has an lse of -inf
  all_rows.heads.terms.rows = false;
  const bool one_sweep = !backward_sweeps(width_of(p));
  hopper_refuses(all_rows, why, {.pairs = one_sweep});
  if (why[0]) return;
  if (p.heads.terms.gate) return say("a gate");
  if (p.q_tokens == 0) return say("there are no queries");
  if (p.heads.terms.softcap && has_pairs(p)) return say("a softcap beside a bias or dropout");
  if (p.run.pieces && p.heads.terms.dropout) return say("dropout under documents(...), which it takes apart");
  if (p.run.pieces && problem.wants.bias) return say("dbias under documents(...), which it takes apart");
  GradientSpec rest = problem.wants;
  rest.q = rest.k = rest.v = rest.sinks = rest.bias = false;
  if (!(rest == GradientSpec{})) return say("gradients beside dq, dk, dv, dbias and dsinks");
  const Checked q_rows = Checked(p.run.padded_q) * Checked(p.heads.q.heads),
                kv_rows = Checked(p.run.padded_kv) * Checked(p.heads.q.heads);
  if (!q_rows.ok || !kv_rows.ok || q_rows.value >= Index{1} << 31 || kv_rows.value >= Index{1} << 31)
    return say("heads times rows, each sequence rounded up to 128, end at 2^31");
  if (p.run.padded_q > 4 * (p.ragged ? p.q_total : p.batch * p.q_tokens) + (1 << 16))
    return say("documents or sequences so short that rounding each up to 128 rows takes 4 times the memory");
  say_unfit(p, {{"dout", RunFacts::dout}, {"dq", RunFacts::dq}, {"dk", RunFacts::dk}, {"dv", RunFacts::dv}},
            why);
}

RowsOf16 rows_of(const AnyView& v) { return {v.data, {v.step[0], v.step[1], v.step[2]}}; }

/// Bytes one behind the other, each on 256.
class Layout {
 public:
  std::size_t add(Index count, std::size_t size) {
    const std::size_t at = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Order of tiles that do not wait for each other. What a section's tiles share fits half of L2. The last
/// section of a band holds about four of the longest tiles a block, or they would be the kernel's tail.
void set_sections(int units, double unit_bytes, const Band& band, int processors, BackwardParams& f) {
  f.keys_outside = !band.whole;
  const int fitting = static_cast<int>(kL2Share / (unit_bytes > 1 ? unit_bytes : 1)),
            cap = fitting > 1 ? fitting : 1;
  int last = band.whole ? cap : (4 * processors + f.unit_tiles - 1) / f.unit_tiles;
  last = last < cap ? cap : last;
  last = last > units ? units : last;
  f.sections = (units - last + cap - 1) / cap;
  f.section = f.sections ? (units - last) / f.sections : units;
  f.section = f.section < 1 ? 1 : f.section;
}

/// In turns a tile of keys waits for the one before it, so only two to four of one head should run at a time.
/// With one, q and dout would no longer be shared in L2 (0.76x at 2k). Sections that begin one after another,
/// a tile apart, were slower (0.91x at 2k).
void set_order(const AttentionProblem& p, const Band& band, bool in_turns, int processors,
               BackwardParams& f) {
  const int units = f.batch * f.kv_heads * f.parts;
  f.down = in_turns && !band.whole;
  if (!in_turns)
    return set_sections(units, 8.0 * f.place.q_tokens * static_cast<double>(width_of(p)) * f.group, band,
                        processors, f);
  f.keys_outside = true;
  // Units of a section. A band of 128 columns lies near 48 of 132 processors: there a section of 64 costs 12
  // % more than no order at all at 2k and 1k, of 43 and 52 9 %, of 32 17 %. In one of 64 columns, 64, 43 and
  // 52 cost 3, 8 and 7 %.
  const int share = band.whole           ? processors / 4
                    : width_of(p) == 128 ? processors * 4 / 11
                                         : processors / 2,
            at_once = share > 0 ? share : 1, more = (units + at_once - 1) / at_once,
            fewer = more > 1 && !band.whole ? more - 1 : more;
  const auto size = [&](int sections) { return (units + sections - 1) / sections; };
  f.section = size(fewer) - at_once <= at_once - size(more) ? size(fewer) : size(more);
  f.sections = (units - 1) / f.section;
}

/// Two sweeps: a launch for dk and dv, one for dq.
struct SweepsRun {
  const Band& band;
  bool terms;
  int width, longest_kv;
};
template <class T>
Status start_sweeps(const SweepsRun& run, const BackwardMaps& maps, BackwardParams f,
                    const LaunchPlace& place) {
  const auto& [band, terms, width, longest_kv] = run;
  Status status;
  if ((f.dk || f.dv) && f.tiles > 0) {
    set_sections(f.batch * f.kv_heads, 4.0 * f.place.q_tokens * width * f.group, band, place.processors, f);
    status = sweep_backward<T>({SweepGradient::keys, width, terms}, maps, f, place);
  }
  const int units = f.batch * f.kv_heads * f.group;
  f.unit_tiles = static_cast<int>(ceil_div(f.place.q_tokens, 2 * kSweepRows));
  f.tiles = f.unit_tiles * units;
  if (!status.ok() || !f.dq_out || f.tiles == 0) return status;
  f.down = !band.whole;
  set_sections(units, 4.0 * longest_kv * width, band, place.processors, f);
  return sweep_backward<T>({SweepGradient::queries, width, terms}, maps, f, place);
}

/// Maps for tiles of `rows` queries and `keys` keys. What is not asked has no map of its own; the kernel does
/// not store there.
Status set_maps(const AttentionProblem& p, const BackwardArgs& args, int rows, int keys, StreamState& state,
                BackwardMaps& maps) {
  const AttentionArgs& a = args.forward;
  Status status = state.map_of(map_spec(p, a.q, rows, 0), maps.q);
  const auto add = [&](const AnyView& v, int box_rows, CUtensorMap& map) {
    if (status.ok()) status = state.map_of(map_spec(p, v, box_rows, 0), map);
  };
  add(args.dout, rows, maps.dout);
  add(a.k, keys, maps.k);
  add(a.v, keys, maps.v);
  add(args.dk.given() ? args.dk : a.k, 64, maps.dk);
  add(args.dv.given() ? args.dv : a.v, 64, maps.dv);
  add(args.dq.given() ? args.dq : a.q, 64, maps.dq);
  return status;
}

/// The gradient of a bias: tiles of scores' gradients leave for dbias itself, or for scratch, from which they
/// are summed. Scratch holds as many sequences as fit kBiasBytes, one at least.
constexpr Index kBiasBytes = Index{1} << 30;
struct BiasPlan {
  bool wanted = false, direct = false;
  Index chunk = 0;           // sequences of a launch
  Index row = 0, pairs = 0;  // numbers in a row and in a sequence of scratch
  Index sums = 0;            // f32 numbers kept from launch to launch
  std::size_t pairs_at = 0, sums_at = 0;
};
BiasPlan bias_plan(const AttentionProblem& p, const BackwardArgs& args) {
  BiasPlan plan;
  plan.wanted = args.dbias.given(), plan.chunk = p.batch;
  if (!plan.wanted) return plan;
  const AnyView& d = args.dbias;
  const Index full[] = {p.batch, p.heads.q.heads, p.q_tokens, p.kv_tokens};
  plan.direct = p.kv_tokens % 8 == 0 && !p.heads.terms.dropout;  // which leaves a factor to the sum
  for (int axis = 0; axis < 4; ++axis) plan.direct = plan.direct && d.size[axis] == full[axis];
  MapSpec spec;
  plan.direct = plan.direct && bias_map(p, d, 64, spec);
  if (plan.direct) return plan;
  plan.row = round_up(p.kv_tokens, 8), plan.pairs = plan.row * p.q_tokens * p.heads.q.heads;
  plan.chunk = max_of(Index{1}, min_of(p.batch, kBiasBytes / (2 * plan.pairs)));
  if (d.size[0] == 1 && plan.chunk < p.batch) plan.sums = d.size[1] * d.size[2] * d.size[3];
  return plan;
}

/// The one kernel of narrow heads, launch by launch where gradients of a bias leave by way of scratch.
struct TilesRun {
  const AttentionProblem& p;
  const BackwardArgs& args;
  const Band& band;
  const BiasPlan& plan;
  BackwardPasses passes;
  bool in_turns;
};
template <class T>
Status start_tiles(const TilesRun& run, BackwardMaps& maps, BackwardParams f, StreamState& state) {
  const auto& [p, args, band, plan, passes, in_turns] = run;
  const LaunchPlace place{state.device, facts_of(state.device).processors, state.stream};
  const int width = width_of(p), all = f.batch;
  const AnyView& d = args.dbias;
  const bool gaps = !band.whole || f.places || band.keys < p.kv_tokens || f.tiles == 0;  // pairs no tile has
  std::byte* pairs = state.scratch + plan.pairs_at;
  f.dbias = plan.wanted;
  Status status;
  if (plan.wanted && plan.direct && gaps)
    status = clear_rows({d.data, {d.step[0], d.step[2], d.step[1]}}, d.size[0], d.size[2], d.size[1],
                        static_cast<int>(d.size[3]), state.stream);
  if (status.ok() && plan.wanted) {
    AnyView to = d;  // what tiles leave for
    if (!plan.direct) {
      to.data = pairs, to.dtype = p.dtype;
      to.size[0] = plan.chunk, to.size[1] = p.heads.q.heads, to.size[2] = p.q_tokens,
      to.size[3] = p.kv_tokens;
      to.step[3] = 1, to.step[2] = plan.row, to.step[1] = plan.row * p.q_tokens, to.step[0] = plan.pairs;
    }
    MapSpec spec;
    if (!bias_map(p, to, backward_queries(width), spec))
      return {"cuda/hopper_backward", 1, "no map of dbias"};
    status = state.map_of(spec, maps.dbias);
  }
  const int chunk = plan.wanted ? static_cast<int>(plan.chunk) : all;
  for (f.first = 0; status.ok() && f.first < all; f.first += chunk) {
    f.batch = min_of(chunk, all - f.first);
    f.tiles = f.unit_tiles * f.batch * f.kv_heads * f.parts;
    set_order(p, band, in_turns, place.processors, f);
    if (plan.wanted && !plan.direct && gaps)
      status = status_of(
          "cuda/clear_bias",
          cudaMemsetAsync(pairs, 0, static_cast<std::size_t>(2 * plan.pairs * f.batch), state.stream));
    if (status.ok() && f.tiles > 0) status = backward<T>(width, passes, maps, f, place);
    if (!status.ok() || !plan.wanted || plan.direct) continue;
    BiasSums w{.from = pairs,
               .size = {f.batch, static_cast<int>(p.heads.q.heads), static_cast<int>(p.q_tokens),
                        static_cast<int>(p.kv_tokens)},
               .row = plan.row,
               .to = d.data,
               .dtype = d.dtype,
               .factor = f.kept,
               .sequence = f.first,
               .sums = reinterpret_cast<float*>(state.scratch + plan.sums_at),
               .begins = plan.sums == 0 || f.first == 0,
               .ends = plan.sums == 0 || f.first + f.batch == all};
    for (int axis = 0; axis < 4; ++axis) w.to_size[axis] = d.size[axis], w.to_step[axis] = d.step[axis];
    status = sum_bias<T>(w, state.stream);
  }
  return status;
}

/// What scores meet; true: more than one positive scale, but for single pairs.
bool set_scores(const AttentionProblem& p, const AttentionArgs& a, BackwardParams& f) {
  const double scale = scale_of(p, a);
  f.scale_log2 = static_cast<float>(scale * 1.4426950408889634074), f.scale = static_cast<float>(scale);
  if (p.heads.terms.softcap) {
    f.inverse_cap = static_cast<float>(scale / a.inputs.softcap);
    f.cap = static_cast<float>(a.inputs.softcap * 1.4426950408889634074);
  }
  f.slopes = per_head(p.heads.terms.alibi, a.inputs.slopes);
  if (p.heads.terms.bias) f.bias = pair_bias(a.inputs.bias);
  if (p.heads.terms.dropout) {
    f.drops = true, f.rule = DropoutRule::of(a.inputs.dropout, a.inputs.seed);
    f.kept = static_cast<float>(1 / (1 - a.inputs.dropout));
    f.inverse_kept = static_cast<float>(1 - a.inputs.dropout);
  }
  return p.heads.terms.softcap || p.heads.terms.alibi || scale <= 0;
}

/// One run, step by step: what it is asked, and what its steps share.
template <class T>
struct Run {
  const BackwardProblem& problem;
  const BackwardArgs& args;
  StreamState& state;
  bool in_turns;
  const AttentionProblem& p = problem.forward;
  const AttentionArgs& a = args.forward;
  int width = width_of(p), rows = backward_queries(width);
  int dim = static_cast<int>(p.heads.q.dim), value_dim = static_cast<int>(p.heads.v.dim),
      heads = static_cast<int>(p.heads.q.heads);
  bool sweeps = backward_sweeps(width);
  int keys = sweeps ? kSweepRows : kBackwardKeys;
  Band band = {};
  BiasPlan plan = {};
  BackwardParams f = {};
  BackwardPlace* places = nullptr;
  int longest_kv = 0;
  bool table = false, terms = false;
  bool gaps = false;  // keys no query may see

  void set_sizes();
  Status reserve();
  Status set_places();
  Status set_rows();
  Status prepare();
  Status multiply();
  Status gather();
};

template <class T>
void Run<T>::set_sizes() {
  in_turns = in_turns && !sweeps;
  const char* why = nullptr;
  band_of(a.mask, 0, band, why);
  table = !alike(p, a, band);
  const Index pieces = pieces_of(band);
  const Padded padded = padded_of(p, a);
  f.batch = static_cast<int>(p.batch * pieces), f.kv_heads = static_cast<int>(p.heads.k.slots());
  f.parts = static_cast<int>(parts_of(p));
  f.group = static_cast<int>(p.heads.k.group) / f.parts;
  f.back = static_cast<int>(band.back), f.ahead = static_cast<int>(band.ahead);
  f.q_padded = static_cast<int>(padded.q), f.kv_padded = static_cast<int>(padded.kv);
  f.pieces = static_cast<int>(pieces);
  plan = bias_plan(p, args);
}

/// The run's own buffers, in the stream's scratch.
template <class T>
Status Run<T>::reserve() {
  const Padded padded = padded_of(p, a);
  Layout layout;
  const std::size_t places_at = layout.add(table ? f.batch : 0, sizeof(BackwardPlace)),
                    lse = layout.add(padded.q * heads, 4), delta = layout.add(padded.q * heads, 4),
                    dq = layout.add(sweeps ? 0 : padded.q * heads * width, 4),
                    turns = layout.add(in_turns ? padded.q * heads / rows : 0, 4);
  const Index part_rows = f.parts > 1 ? padded.kv * f.kv_heads * f.parts * width : 0;
  const std::size_t dk_parts = layout.add(part_rows, 4), dv_parts = layout.add(part_rows, 4);
  plan.pairs_at = layout.add(plan.pairs * plan.chunk, 2), plan.sums_at = layout.add(plan.sums, 4);
  const bool sends_ids = p.heads.terms.dropout && a.inputs.sequence_ids.given();
  const std::size_t ids = layout.add(sends_ids ? p.batch : 0, sizeof(Index));
  const Status status = state.reserve(1, layout.bytes());
  if (!status.ok()) return status;
  const auto floats = [&](std::size_t at) { return reinterpret_cast<float*>(state.scratch + at); };
  f.lse = floats(lse), f.delta = floats(delta), f.dq = sweeps ? nullptr : floats(dq);
  f.turns = in_turns ? reinterpret_cast<int*>(state.scratch + turns) : nullptr;
  f.dk_parts = floats(dk_parts), f.dv_parts = floats(dv_parts);
  f.counter = state.counters;
  places = reinterpret_cast<BackwardPlace*>(state.scratch + places_at);
  if (!sends_ids) return status;
  auto* to = reinterpret_cast<Index*>(state.scratch + ids);
  f.sequence_ids = to;
  return send_ids(a.inputs.sequence_ids, p.batch, to, state.stream);
}

/// One place that serves all sequences, or a table that goes over in pieces of what a launch carries. `band`
/// becomes that of the last sequence.
template <class T>
Status Run<T>::set_places() {
  const Index pieces = pieces_of(band), sequences = p.batch * pieces;
  constexpr Index kPiece = static_cast<Index>(kUploadBytes / sizeof(BackwardPlace));
  BackwardPlace some[kPiece];
  const char* why = nullptr;
  Index q_at = 0, kv_at = 0;
  for (Index i = 0; i < (table ? sequences : 1); ++i) {
    BackwardPlace& at = some[i % kPiece];
    band_of(a.mask, i / pieces, band, why);
    place_for(p, a, i / pieces, i % pieces, band, at);
    at.q_padded = static_cast<int>(q_at), at.kv_padded = static_cast<int>(kv_at);
    q_at += padded_rows(at.q_tokens), kv_at += padded_rows(at.kv_tokens);
    longest_kv = at.kv_tokens > longest_kv ? at.kv_tokens : longest_kv;
    if (i == 0 || at.q_tokens > f.place.q_tokens) f.place = at;
    if (table && (i % kPiece == kPiece - 1 || i == sequences - 1)) {
      const Status status =
          upload(places + i / kPiece * kPiece, some,
                 static_cast<std::size_t>(i % kPiece + 1) * sizeof(BackwardPlace), state.stream);
      if (!status.ok()) return status;
    }
  }
  f.places = table ? places : nullptr;
  if (!table) f.place.q_padded = static_cast<int>(q_at), f.place.kv_padded = static_cast<int>(kv_at);
  return {};
}

/// Where sequences lie, what scores meet, where gradients go.
template <class T>
Status Run<T>::set_rows() {
  const Status status = set_places();
  if (!status.ok()) return status;
  f.unit_tiles = static_cast<int>(ceil_div(longest_kv, keys));
  f.tiles = f.unit_tiles * f.batch * f.kv_heads * f.parts;

  terms = set_scores(p, a, f);
  gaps = band.documents || band.by_length || band.keys < p.kv_tokens;
  f.store_rows = f.clear_tail = table || gaps;
  f.head_chunks = dim / 8, f.value_chunks = value_dim / 8;
  f.dk = args.dk.data, f.dv = args.dv.data;
  for (int axis = 0; axis < 3; ++axis)
    f.dk_step[axis] = args.dk.step[axis], f.dv_step[axis] = args.dv.step[axis],
    f.dq_step[axis] = args.dq.step[axis];
  f.dq_out = args.dq.data;
  return status;
}

template <class T>
Status Run<T>::prepare() {
  for (const AnyView* v : {&args.dk, &args.dv})
    if (v->given() && gaps) {
      const Status status = clear_rows(rows_of(*v), v->size[0], v->size[1], v->size[2],
                                       static_cast<int>(v->size[3]), state.stream);
      if (!status.ok()) return status;
    }
  Prepare ready{heads, width, value_dim, rows, rows_of(a.out), rows_of(args.dout)};
  ready.lse = static_cast<const float*>(a.lse.data);
  for (int axis = 0; axis < 3; ++axis) ready.lse_step[axis] = a.lse.step[axis];
  return prepare_rows<T>(f, ready, state.stream);
}

template <class T>
Status Run<T>::multiply() {
  if (f.tiles == 0 && !sweeps && !plan.wanted) return {};
  BackwardMaps maps{};
  Status status = set_maps(p, args, rows, keys, state, maps);
  if (status.ok() && sweeps)
    status = start_sweeps<T>({band, terms, width, longest_kv}, maps, f,
                             {state.device, facts_of(state.device).processors, state.stream});
  MapSpec bias;
  if (status.ok() && p.heads.terms.bias && bias_map(p, a.inputs.bias, rows, bias)) {
    f.bias_tiles = true;
    status = state.map_of(bias, maps.bias);
  }
  const BackwardPasses passes = has_pairs(p) ? BackwardPasses::pairs
                                : terms      ? BackwardPasses::terms
                                             : BackwardPasses::band;
  if (status.ok() && !sweeps)
    status = start_tiles<T>({p, args, band, plan, passes, in_turns}, maps, f, state);
  return status;
}

/// Sums in f32 leave their scratch.
template <class T>
Status Run<T>::gather() {
  Status status;
  if (args.dq.given() && !sweeps)
    status =
        gather_rows<T>(f, {f.dq, heads, width, dim, false, f.scale * f.kept, rows_of(args.dq)}, state.stream);
  if (status.ok() && f.parts > 1 && args.dk.given())
    status = gather_rows<T>(f, {f.dk_parts, f.kv_heads, width, dim, true, f.scale * f.kept, rows_of(args.dk)},
                            state.stream);
  if (status.ok() && f.parts > 1 && args.dv.given())
    status = gather_rows<T>(f, {f.dv_parts, f.kv_heads, width, value_dim, true, f.kept, rows_of(args.dv)},
                            state.stream);
  if (status.ok() && args.dsinks.given())
    status = sum_sinks(f,
                       {.heads = heads,
                        .sinks = per_head(true, a.inputs.sinks),
                        .to = args.dsinks.data,
                        .dtype = args.dsinks.dtype,
                        .step = args.dsinks.step[0]},
                       state.stream);
  return status;
}

template <class T>
Status start(const BackwardProblem& problem, const BackwardArgs& args, StreamState& state, bool in_turns) {
  Run<T> run{problem, args, state, in_turns};
  run.set_sizes();
  Status status = run.reserve();
  if (status.ok()) status = run.set_rows();
  if (status.ok()) status = run.prepare();
  if (status.ok()) status = run.multiply();
  return status.ok() ? run.gather() : status;
}

template <bool InTurns>
Status run(const BackwardProblem& p, const BackwardArgs& a, int device, void* stream) {
  if (p.forward.batch == 0 || p.forward.heads.q.heads == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  return p.forward.dtype == DType::bf16 ? start<bf16>(p, a, *state, InTurns)
                                        : start<f16>(p, a, *state, InTurns);
}

void numerics(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  if (backward_sweeps(width_of(p.forward))) {
    std::snprintf(words, sizeof words, "cuda/hopper_backward sm_90a %s q%d k%d",
                  name_of(p.forward.dtype).data(), kSweepRows, kSweepRows);
    return;
  }
  std::snprintf(words, sizeof words,
                "cuda/hopper_backward sm_90a %s q%d k%d, heads of a group in parts up to %lld units",
                name_of(p.forward.dtype).data(), backward_queries(width_of(p.forward)), kBackwardKeys,
                static_cast<long long>(kUnits));
}
void numerics_unordered(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  if (backward_sweeps(width_of(p.forward))) return numerics(p, words);  // there is no order to leave
  std::snprintf(words, sizeof words, "cuda/unordered sm_90a %s: dq differs in its last bits from run to run",
                name_of(p.forward.dtype).data());
}

}  // namespace

const BackwardKernel kBackward = {"cuda/hopper_backward", refuse, run<true>, numerics};
const BackwardKernel kUnordered = {"cuda/unordered", refuse, run<false>, numerics_unordered};

}  // namespace headwise::cuda::hopper::backward
