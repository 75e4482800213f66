// cuda/rows: heads that list their query rows. Rows side by side under Hopper's tiles where every query sees
// the same keys; else another kernel does all rows and those that are not listed are cleared.
#include <cstdio>
#include <vector>

#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/inputs/per_head.cuh"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::row_lists {

using hopper::map_spec;
namespace {

constexpr int kThreads = 256;
constexpr Index kMostBits = Index{1} << 20;  // bytes that travel with launches

AttentionProblem without_rows(AttentionProblem p) {
  p.heads.terms.rows = false;
  return p;
}
AttentionArgs without_rows(AttentionArgs a) {
  a.inputs.rows = {};
  return a;
}
/// Where every list is done as a whole: the problem of one list, without what asks for its head or position.
AttentionProblem gathered(const AttentionProblem& p) {
  AttentionProblem one = without_rows(p);
  one.heads.terms.gate = false;
  return one;
}

const Kernel* inner_of(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  for (const Kernel* k : {&hopper::forward::kAttend, &mma::kAttend, &plain::kAttend}) {
    k->refuse(without_rows(p), why);
    if (!why[0]) return k;
  }
  return nullptr;
}
bool gathers(const AttentionProblem& p, const AttentionArgs& a) {
  char why[kSentenceBytes];
  hopper::forward::kAttend.refuse(gathered(p), why);
  Band band;
  const char* part = nullptr;
  if (why[0] || !band_of(a.mask, 0, band, part)) return false;
  const Terms& t = p.heads.terms;
  return band.whole && !band.by_length && !band.documents && !p.ragged && !t.alibi && !t.softcap &&
         !t.sinks && !t.bias && !t.dropout && !p.probe.any() && hopper::scale_of(p, a) > 0 &&
         p.heads.q.dim == p.heads.v.dim;
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  why[0] = '\0';
  if (!p.heads.terms.rows) return void(std::snprintf(why, sizeof why, "heads list no rows"));
  if (p.probe.any()) return void(std::snprintf(why, sizeof why, "probes of heads that list their rows"));
  if (p.batch * p.heads.q.heads > 65535)
    return void(std::snprintf(why, sizeof why, "its grid ends at 65,535 lists"));
  const Index bytes = p.batch * p.heads.q.heads * ceil_div(p.q_tokens, 32) * 4;
  if (bytes > kMostBits && !p.run.listed_there)
    return void(std::snprintf(why, sizeof why, "lists of %lld bytes; up to %lld travel with a launch",
                              static_cast<long long>(bytes), static_cast<long long>(kMostBits)));
  inner_of(p, why);
}

/// One bit a row of a list: a list of numbers would take 32 times the launches.
std::vector<std::uint32_t> bits_of(const AttentionProblem& p, const RowLists& rows) {
  const Index words = ceil_div(p.q_tokens, 32);
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(p.batch * p.heads.q.heads * words));
  const auto* index = static_cast<const Index*>(rows.index.data);
  const Index step = rows.index.step[0];
  for (Index n = 0; n < p.batch * p.heads.q.heads; ++n) {
    std::uint32_t* to = bits.data() + n * words;
    for (Index i = rows.begin(n), end = rows.begin(n + 1); i < end; ++i)
      to[index[i * step] / 32] |= 1u << (index[i * step] % 32);
  }
  return bits;
}
Status send(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  for (std::size_t at = 0; at < bytes; at += kUploadBytes) {
    const Status status = upload(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                                 bytes - at < kUploadBytes ? bytes - at : kUploadBytes, stream);
    if (!status.ok()) return status;
  }
  return {};
}

struct HeadRowsView {
  void* data;
  Index step[4];
};
HeadRowsView rows_of(const AnyView& v) { return {v.data, {v.step[0], v.step[1], v.step[2], v.step[3]}}; }

struct RowListTask {
  HeadRowsView q, out;
  std::uint32_t* bits;           // [lists words]
  const Index *offsets, *index;  // lists that lie on the device, or null
  Index offsets_step, index_step, listed;
  int* before;         // [lists words]: rows of a list before each word
  Place* list_places;  // [lists]: a sequence of its own to the tiles
  int keys;
  std::uint16_t *q_packed, *out_packed;  // [lists room dim]
  float* lse_packed;                     // [lists room]
  float* lse;
  double* lse_double;
  Index lse_step[3];
  RowGate gate;
  const SequenceLocation* places;
  DType dtype;
  int heads, words, room, dim;

  __device__ __forceinline__ bool lists(Index list, int row) const {
    return bits[list * words + row / 32] >> (row % 32) & 1;
  }
  /// The place of a listed row in its list.
  __device__ __forceinline__ int rank(Index list, int row) const {
    const Index word = list * words + row / 32;
    return before[word] + __popc(bits[word] & ((1u << (row % 32)) - 1));
  }
};

/// A block a list: its bits. What lies outside of the arrays or the sequence is passed over.
__global__ void __launch_bounds__(kThreads) mark_rows(const __grid_constant__ RowListTask p) {
  const Index list = blockIdx.x;
  std::uint32_t* bits = p.bits + list * p.words;
  const int tokens = static_cast<int>(p.places[list / p.heads].q_tokens),
            thread = static_cast<int>(threadIdx.x);
  for (int n = thread; n < p.words; n += kThreads) bits[n] = 0;
  __syncthreads();
  const Index begin = max(p.offsets[list * p.offsets_step], Index{0}),
              end = min(p.offsets[(list + 1) * p.offsets_step], p.listed);
  for (Index i = begin + thread; i < end; i += kThreads) {
    const Index row = p.index[i * p.index_step];
    if (row >= 0 && row < tokens) atomicOr(bits + row / 32, 1u << (row % 32));
  }
}
/// A block a list: how many rows stand before each word, and the list's place.
__global__ void __launch_bounds__(kThreads) count_rows(const __grid_constant__ RowListTask p) {
  __shared__ int counts[kThreads], base;
  const Index list = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) base = 0;
  for (int first = 0; first < p.words; first += kThreads) {
    const int own = first + thread < p.words ? __popc(p.bits[list * p.words + first + thread]) : 0;
    counts[thread] = own;
    __syncthreads();
    for (int n = 1; n < kThreads; n *= 2) {  // counts become sums up to each
      const int more = thread >= n ? counts[thread - n] : 0;
      __syncthreads();
      counts[thread] += more;
      __syncthreads();
    }
    if (first + thread < p.words) p.before[list * p.words + first + thread] = base + counts[thread] - own;
    __syncthreads();
    if (thread == 0) base += counts[kThreads - 1];
    __syncthreads();
  }
  if (thread == 0) p.list_places[list] = {static_cast<int>(list / p.heads), 0, 0, base, p.keys, 0, 0, 0};
}
/// Eight columns of a row a thread, heads of a token side by side as they lie.
__global__ void __launch_bounds__(kThreads) gather_listed(const __grid_constant__ RowListTask p) {
  const int chunks = p.dim / 8, row = static_cast<int>(blockIdx.x);
  const Index b = blockIdx.y;
  for (int n = static_cast<int>(threadIdx.x); n < p.heads * chunks; n += kThreads) {
    const Index h = n / chunks, list = b * p.heads + h;
    if (!p.lists(list, row)) continue;
    const int c = n % chunks * 8;
    const auto* from = static_cast<const std::uint16_t*>(p.q.data) + b * p.q.step[0] + row * p.q.step[1] +
                       h * p.q.step[2] + c;
    *reinterpret_cast<uint4*>(p.q_packed + (list * p.room + p.rank(list, row)) * p.dim + c) =
        *reinterpret_cast<const uint4*>(from);
  }
}
template <class T>
__global__ void __launch_bounds__(kThreads) spread_listed(const __grid_constant__ RowListTask p) {
  const int chunks = p.dim / 8, row = static_cast<int>(blockIdx.x);
  const Index b = blockIdx.y;
  for (int n = static_cast<int>(threadIdx.x); n < p.heads * chunks; n += kThreads) {
    const Index h = n / chunks, list = b * p.heads + h;
    const int c = n % chunks * 8;
    uint4 x{};
    float lse = -INFINITY;
    if (p.lists(list, row)) {
      const Index from = list * p.room + p.rank(list, row);
      x = *reinterpret_cast<const uint4*>(p.out_packed + from * p.dim + c), lse = p.lse_packed[from];
      if (p.gate.data) {
        const float gate = number_of(p.gate, b, row, h);
        for (std::uint32_t* word : {&x.x, &x.y, &x.z, &x.w})
          *word = Number<T>::pack(gate * Number<T>::low(*word), gate * Number<T>::high(*word));
      }
    }
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(p.out.data) + b * p.out.step[0] +
                              row * p.out.step[1] + h * p.out.step[2] + c) = x;
    if (p.lse && c == 0) p.lse[b * p.lse_step[0] + h * p.lse_step[1] + row * p.lse_step[2]] = lse;
  }
}
/// Rows that are not listed: 0, and lse -inf. A warp a row.
__global__ void __launch_bounds__(kThreads) clear_unlisted(const __grid_constant__ RowListTask p) {
  const Index list = blockIdx.y, b = list / p.heads, h = list % p.heads;
  const SequenceLocation at = p.places[b];
  const int row = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= at.q_tokens || p.lists(list, row)) return;
  const Index to = at.tensor_batch * p.out.step[0] + (at.q_row + row) * p.out.step[1] + h * p.out.step[2];
  for (int c = lane; c < p.dim; c += 32) store_float(p.out.data, p.dtype, to + c * p.out.step[3], 0);
  const Index lse = at.tensor_batch * p.lse_step[0] + h * p.lse_step[1] + (at.q_row + row) * p.lse_step[2];
  if (lane == 0 && p.lse) p.lse[lse] = -INFINITY;
  if (lane == 0 && p.lse_double) p.lse_double[lse] = -INFINITY;
}

RowListTask listed_of(const AttentionProblem& p, const AttentionArgs& a) {
  RowListTask f{};
  f.q = rows_of(a.q), f.out = rows_of(a.out), f.dtype = p.dtype;
  f.heads = static_cast<int>(p.heads.q.heads), f.words = static_cast<int>(ceil_div(p.q_tokens, 32));
  f.dim = static_cast<int>(p.heads.v.dim);
  if (p.lse && a.lse.dtype == DType::f32) f.lse = static_cast<float*>(a.lse.data);
  if (p.lse && a.lse.dtype == DType::f64) f.lse_double = static_cast<double*>(a.lse.data);
  for (int axis = 0; axis < 3; ++axis) f.lse_step[axis] = a.lse.step[axis];
  if (p.heads.terms.gate) {
    const AnyView& g = a.inputs.gate;
    f.gate = {g.data, g.dtype, {g.step[0], g.step[1], g.step[2]}};
  }
  return f;
}
Status clear(const RowListTask& f, const AttentionProblem& p, cudaStream_t stream) {
  return launch({"cuda/clear_unlisted",
                 dim3(static_cast<unsigned>(ceil_div(p.q_tokens, kThreads / 32)),
                      static_cast<unsigned>(p.batch * f.heads)),
                 kThreads, 0, stream},
                clear_unlisted, f);
}
/// Sends what every run needs, bits and places; of lists that lie on the device the bits are made there.
Status send_lists(const AttentionProblem& p, const AttentionArgs& a, std::byte* scratch, RowListTask& f,
                  cudaStream_t stream) {
  std::vector<SequenceLocation> places;
  for (Index b = 0; b < p.batch; ++b) places.push_back(place_of(p, a, b));
  const std::size_t place_bytes = places.size() * sizeof(SequenceLocation);
  f.places = reinterpret_cast<const SequenceLocation*>(scratch);
  f.bits = reinterpret_cast<std::uint32_t*>(scratch + place_bytes);
  const Status status = send(scratch, places.data(), place_bytes, stream);
  if (!status.ok()) return status;
  const RowLists& rows = a.inputs.rows;
  if (rows.on_device()) {
    f.offsets = static_cast<const Index*>(rows.offsets.data), f.offsets_step = rows.offsets.step[0];
    f.index = static_cast<const Index*>(rows.index.data), f.index_step = rows.index.step[0];
    f.listed = rows.index.size[0];
    return launch({"cuda/mark_rows", dim3(static_cast<unsigned>(p.batch * f.heads)), kThreads, 0, stream},
                  mark_rows, f);
  }
  const std::vector<std::uint32_t> bits = bits_of(p, rows);
  return send(scratch + place_bytes, bits.data(), bits.size() * sizeof(std::uint32_t), stream);
}
std::size_t list_bytes(const AttentionProblem& p) {
  const Index words = p.batch * p.heads.q.heads * ceil_div(p.q_tokens, 32);
  return (static_cast<std::size_t>(p.batch) * sizeof(SequenceLocation) + static_cast<std::size_t>(words) * 4 +
          255) /
         256 * 256;
}

/// Lists side by side, [batch heads room dim]: to the tiles each is a sequence of its own.
template <class T>
Status run_gathered(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, int device) {
  const Index heads = p.heads.q.heads, dim = p.heads.q.dim, lists = p.batch * heads;
  const RowLists& rows = a.inputs.rows;
  Index most = rows.on_device() ? p.q_tokens : 1;
  for (Index n = 0; !rows.on_device() && n < lists; ++n)
    most = max_of(most, rows.begin(n + 1) - rows.begin(n));
  const Index room = round_up(most, 8);
  RowListTask f = listed_of(p, a);
  f.room = static_cast<int>(room);
  const auto bytes = [](Index n) { return static_cast<std::size_t>(round_up(n, 256)); };
  const std::size_t sent = list_bytes(p), word_bytes = bytes(lists * f.words * 4),
                    lse_bytes = bytes(lists * room * 4), packed_bytes = bytes(lists * room * dim * 2),
                    place_bytes = bytes(lists * static_cast<Index>(sizeof(Place)));
  Status status = state.reserve(1, sent + word_bytes + lse_bytes + 2 * packed_bytes + place_bytes);
  if (!status.ok()) return status;
  std::byte* at = state.scratch + sent;
  f.before = reinterpret_cast<int*>(at), at += word_bytes;
  f.lse_packed = reinterpret_cast<float*>(at), at += lse_bytes;
  f.q_packed = reinterpret_cast<std::uint16_t*>(at), at += packed_bytes;
  f.out_packed = reinterpret_cast<std::uint16_t*>(at), at += packed_bytes;
  f.list_places = reinterpret_cast<Place*>(at);
  status = send_lists(p, a, state.scratch, f, state.stream);
  Band band;
  const char* why = nullptr;
  band_of(a.mask, 0, band, why);
  const auto keys = static_cast<int>(min_of(p.kv_tokens, band.keys));
  f.keys = keys;
  const dim3 tokens(static_cast<unsigned>(p.q_tokens), static_cast<unsigned>(p.batch));
  if (status.ok())
    status = launch({"cuda/count_rows", dim3(static_cast<unsigned>(lists)), kThreads, 0, state.stream},
                    count_rows, f);
  if (status.ok())
    status = launch({"cuda/gather_listed", tokens, kThreads, 0, state.stream}, gather_listed, f);
  if (!status.ok()) return status;

  const auto head_dim = static_cast<int>(dim);
  const hopper::ForwardWidths widths = hopper::forward_widths(head_dim, head_dim);
  const int groups = widths.value > 128 ? 2 : 3, tile_rows = hopper::forward_rows(groups);
  const auto packed = [&](std::uint16_t* data) {
    AnyView v = AnyView::packed(data, p.dtype, {p.batch, room, heads, dim});
    v.step[0] = heads * room * dim, v.step[1] = dim, v.step[2] = room * dim;
    return v;
  };
  const AnyView q = packed(f.q_packed), out = packed(f.out_packed);
  AttentionArgs inner = a;
  inner.out = out;
  hopper::ForwardParams r;
  hopper::set_terms(gathered(p), a, r);
  hopper::set_outputs(gathered(p), inner, r);
  r.lse = f.lse_packed, r.lse_step[0] = heads * room, r.lse_step[1] = room, r.lse_step[2] = 1;
  r.store_rows = true, r.out_chunks = head_dim / 8, r.clear_tail = keys < p.kv_tokens;
  r.counter = state.counters, r.places = f.list_places, r.by_head = true;
  r.place = {0, 0, 0, static_cast<int>(most), keys, 0, 0, 0};
  r.batch = static_cast<int>(p.batch), r.heads = static_cast<int>(heads);
  r.group = static_cast<int>(p.heads.k.group);
  r.back = static_cast<int>(band.back), r.ahead = static_cast<int>(band.ahead);
  r.q_tiles = static_cast<int>(ceil_div(most, tile_rows)), r.tiles = r.q_tiles * r.batch * r.heads;
  r.section = r.batch * r.heads, r.sections = 0, r.side_by_side = true;
  hopper::ForwardMaps maps{};
  status = state.map_of(map_spec(p, q, tile_rows, 0), maps.q);
  const int key_rows = hopper::forward_keys(widths.head, widths.value);
  if (status.ok()) status = state.map_of(map_spec(p, a.k, key_rows, 0), maps.k);
  if (status.ok()) status = state.map_of(map_spec(p, a.v, key_rows, 0), maps.v);
  if (status.ok()) status = state.map_of(map_spec(p, out, 64, 0), maps.out);
  if (status.ok())
    status = hopper::forward::attend_tiles<T>({.head_dim = widths.head,
                                               .groups = groups,
                                               .passes = hopper::TileTerms::band,
                                               .device = device,
                                               .processors = facts_of(device).processors,
                                               .stream = state.stream},
                                              maps, r);
  return status.ok() ? launch({"cuda/spread_listed", tokens, kThreads, 0, state.stream}, spread_listed<T>, f)
                     : status;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  if (gathers(p, a)) {
    const std::lock_guard lock(state->mutex);
    return p.dtype == DType::bf16 ? run_gathered<bf16>(p, a, *state, device)
                                  : run_gathered<f16>(p, a, *state, device);
  }
  char why[kSentenceBytes];
  const Kernel* inner = inner_of(p, why);
  Status status = inner->run(without_rows(p), without_rows(a), device, stream);
  if (!status.ok()) return status;
  const std::lock_guard lock(state->mutex);
  status = state->reserve(1, list_bytes(p));
  RowListTask f = listed_of(p, a);
  if (status.ok()) status = send_lists(p, a, state->scratch, f, state->stream);
  return status.ok() ? clear(f, p, state->stream) : status;
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/rows %s", name_of(p.dtype).data());
}

}  // namespace

const Kernel kAttend = {"cuda/rows", refuse, run, numerics};

}  // namespace headwise::cuda::row_lists
