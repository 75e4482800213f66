// f32 by f32 on tensor cores: three parts of bf16 a number, six products of parts in one sum over k.
#include <cstdio>

#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/table/gemm.h"

namespace headwise::cuda::gemm {
namespace {

constexpr const char* kName = "cuda/gemm_parts";
constexpr int kProducts = 6, kSide = 32;
/// Bytes of split rows of a that are kept at once: more rows are multiplied one lot after the other.
constexpr Index kLotBytes = Index{256} << 20;

/// Which part of a and of b each of the six products takes: small ones first, so that the sum is cut off
/// where it is small.
struct Order {
  int part[kProducts];
};
constexpr Order kLeft = {{2, 0, 1, 1, 0, 0}}, kRight = {{0, 2, 1, 0, 1, 0}};

/// The first, second or third 8 bits of x, exactly; inf and NaN are all in the first.
__device__ __forceinline__ std::uint16_t part_of(float x, int part) {
  if (!isfinite(x)) return part ? 0 : isnan(x) ? 0x7fc0 : x > 0 ? 0x7f80 : 0xff80;
  std::uint32_t bits = __float_as_uint(x);
  for (int i = 0; i < part; ++i)
    x = __fsub_rn(x, __uint_as_float(bits & 0xffff0000u)), bits = __float_as_uint(x);
  return static_cast<std::uint16_t>(bits >> 16);
}

struct Split {
  const float* data;
  Axis own, deep;  // along the lines that are made, and along k
  Index lines, k, padded;
  std::uint16_t* to;  // [lines 6 padded]
  Order order;
};
/// 32 lines x 32 of k, read along whichever has its numbers side by side.
__global__ void __launch_bounds__(kSide * 8) split_parts(const __grid_constant__ Split s) {
  __shared__ float tile[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const Index line0 = static_cast<Index>(blockIdx.x) * kSide, k0 = static_cast<Index>(blockIdx.y) * kSide;
  const bool by_k = s.deep.step == 1;
  for (int i = y; i < kSide; i += 8) {
    const int l = by_k ? i : x, k = by_k ? x : i;
    tile[l][k] = line0 + l < s.lines && k0 + k < s.k ? s.data[s.own.at(line0 + l) + s.deep.at(k0 + k)] : 0.0f;
  }
  __syncthreads();
  for (int l = y; l < kSide; l += 8) {
    if (line0 + l >= s.lines || k0 + x >= s.padded) continue;
    const float number = tile[l][x];
    std::uint16_t* to = s.to + (line0 + l) * kProducts * s.padded + k0 + x;
    for (int i = 0; i < kProducts; ++i) to[i * s.padded] = part_of(number, s.order.part[i]);
  }
}
Status start_split(const Split& s, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(s.lines, kSide)),
                  static_cast<unsigned>(ceil_div(s.padded, kSide)));
  return launch({kName, grid, kSide * 8, 0, stream}, split_parts, s);
}

void refuse(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  const char* why = never(p);
  if (!*why && (p.a != DType::f32 || p.b != DType::f32))
    why = "a and b are not both f32";
  else if (!*why && !p.parts)
    why = "the problem does not ask for f32 in parts";
  std::snprintf(words, sizeof words, "%s", why);
  if (*why) return;
  GemmProblem halves = p;
  halves.a = halves.b = DType::bf16;
  kMma.refuse(halves, words);
}

/// From row `first` on.
MatrixView rows_from(MatrixView x, Index first, Index count) {
  if (!x.given()) return x;
  if (first > 0) x.data = static_cast<std::byte*>(x.data) + x.rows.at(first) * size_of(x.dtype);
  x.rows.size = count;
  return x;
}
MatrixView lines_at(void* data, Index lines, Index length) {
  MatrixView v;
  v.data = data, v.dtype = DType::bf16;
  v.rows = {lines, max_of(lines, 1), length, 0}, v.columns = {length, max_of(length, 1), 1, 0};
  return v;
}

Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream_of_caller) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const auto stream = static_cast<cudaStream_t>(stream_of_caller);
  const Product p = product_of(problem, args);
  const Index padded = round_up(p.k, 8), length = kProducts * padded, bytes = max_of(length * 2, 1);
  const bool flat =
      p.out.rows.flat() && p.residual.rows.flat() && p.factor.rows.flat() && p.slope.rows.flat();
  const Index lot = flat ? min_of(p.m, max_of(kLotBytes / bytes / 256 * 256, 256)) : p.m;
  StreamState* state = state_of(device, stream);
  if (!state) return kNoState;
  const std::lock_guard lock(state->outer);
  const Index left_bytes = round_up(lot * bytes, 256);
  Status status = state->hold(static_cast<std::size_t>(left_bytes + p.n * bytes));
  if (!status.ok()) return status;
  auto* left = reinterpret_cast<std::uint16_t*>(state->held);
  auto* right = reinterpret_cast<std::uint16_t*>(state->held + left_bytes);
  const GemmEntries& kernel = facts_of(device).major == 9 ? kHopper : kMma;
  if (p.k > 0)
    status = start_split(
        {static_cast<const float*>(p.b.data), p.b.columns, p.b.rows, p.n, p.k, padded, right, kRight},
        stream);
  for (Index first = 0; status.ok() && first < p.m; first += lot) {
    const Index count = min_of(lot, p.m - first);
    if (p.k > 0)
      status = start_split({static_cast<const float*>(args.a.data) + args.a.rows.at(first), p.a.rows,
                            p.a.columns, count, p.k, padded, left, kLeft},
                           stream);
    GemmProblem q = problem;
    q.m = count, q.k = length, q.a = q.b = DType::bf16, q.parts = false;
    GemmArgs g = args;
    g.a = lines_at(left, count, length), g.b = lines_at(right, p.n, length).transposed();
    g.out = rows_from(args.out, first, count), g.residual = rows_from(args.residual, first, count);
    g.factor = rows_from(args.factor, first, count), g.slope = rows_from(args.slope, first, count);
    if (status.ok()) status = kernel.run(q, g, device, stream_of_caller);
  }
  return status;
}
void numerics(const GemmProblem&, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/gemm_parts f32x3 k16");
}

}  // namespace

const GemmEntries kParts = {kName, refuse, run, numerics};

}  // namespace headwise::cuda::gemm
