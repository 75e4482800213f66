// Products by cuBLASLt, found at run time: only where a list names it, since its sums follow all sizes.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/table/gemm.h"

namespace headwise::cuda::gemm {
namespace {

constexpr const char* kName = "cuda/cublaslt";
constexpr std::size_t kWorkspaceBytes = 32 << 20;

/// The library's numbers, as its documentation lists them.
constexpr int kFloat = 0, kHalf = 2, kBfloat = 14, kSumsInFloat = 68;
constexpr int kTurnLeft = 3, kTurnRight = 4, kBytesOfWorkspace = 1, kReductionMask = 3;

struct Heuristic {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
/// What of libcublasLt is called; handle null: `why`.
struct Library {
  int (*create)(void**);
  std::size_t (*version)();
  int (*make_product)(void**, int, int);
  int (*set_product)(void*, int, const void*, std::size_t);
  int (*drop_product)(void*);
  int (*make_layout)(void**, int, std::uint64_t, std::uint64_t, std::int64_t);
  int (*drop_layout)(void*);
  int (*make_wish)(void**);
  int (*set_wish)(void*, int, const void*, std::size_t);
  int (*drop_wish)(void*);
  int (*ask)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*);
  int (*run)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
             void*, void*, void*, const void*, void*, std::size_t, cudaStream_t);
  void* handle = nullptr;
  const char* why = nullptr;
};

/// A copy that the process has (torch's), the one that HEADWISE_CUBLASLT names, or the loader's.
void* open_library() {
  const char* names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (const char* name : names)
    if (void* there = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return there;
  if (const char* named = std::getenv("HEADWISE_CUBLASLT"); named && *named)
    return dlopen(named, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : names)
    if (void* found = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return found;
  return nullptr;
}
Library load() {
  Library l{};
  void* opened = open_library();
  if (!opened) {
    l.why = "libcublasLt was not found; name its path in HEADWISE_CUBLASLT";
    return l;
  }
  bool all = true;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
    all = all && function;
  };
  take(l.create, "cublasLtCreate"), take(l.version, "cublasLtGetVersion");
  take(l.make_product, "cublasLtMatmulDescCreate"), take(l.set_product, "cublasLtMatmulDescSetAttribute");
  take(l.drop_product, "cublasLtMatmulDescDestroy"), take(l.make_layout, "cublasLtMatrixLayoutCreate");
  take(l.drop_layout, "cublasLtMatrixLayoutDestroy"), take(l.make_wish, "cublasLtMatmulPreferenceCreate");
  take(l.set_wish, "cublasLtMatmulPreferenceSetAttribute");
  take(l.drop_wish, "cublasLtMatmulPreferenceDestroy");
  take(l.ask, "cublasLtMatmulAlgoGetHeuristic"), take(l.run, "cublasLtMatmul");
  if (!all)
    l.why = "this libcublasLt lacks functions of version 12";
  else if (l.create(&l.handle) != 0)
    l.why = "cuBLASLt does not start on this device", l.handle = nullptr;
  return l;
}
const Library& library() {
  static const Library l = load();
  return l;
}

constexpr int code_of(DType t) { return t == DType::f32 ? kFloat : t == DType::f16 ? kHalf : kBfloat; }

/// One product as the library sees it: all matrices turned, since its lines are columns. Kept by its sizes.
struct Made {
  Index key[10] = {};
  int device = -1;
  void *product = nullptr, *left = nullptr, *right = nullptr, *out = nullptr;
  Heuristic best = {};
};

int make(const Library& l, const Product& p, const Lines& lines, Made& made) {
  const Index b_step = lines.turn_b ? p.b.rows.step : p.b.columns.step,
              a_step = lines.turn_a ? p.a.columns.step : p.a.rows.step;
  const int turn_left = !lines.turn_b, turn_right = lines.turn_a, code = code_of(p.a.dtype);
  const auto layout = [&](void*& to, int type, Index rows, Index columns, Index step) {
    return l.make_layout(&to, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                         max_of(step, rows));
  };
  int bad = l.make_product(&made.product, kSumsInFloat, kFloat);
  if (!bad) bad = l.set_product(made.product, kTurnLeft, &turn_left, sizeof turn_left);
  if (!bad) bad = l.set_product(made.product, kTurnRight, &turn_right, sizeof turn_right);
  if (!bad) bad = layout(made.left, code, turn_left ? p.k : p.n, turn_left ? p.n : p.k, b_step);
  if (!bad) bad = layout(made.right, code, turn_right ? p.m : p.k, turn_right ? p.k : p.m, a_step);
  if (!bad) bad = layout(made.out, code_of(p.out.dtype), p.n, p.m, p.out.rows.step);
  void* wish = nullptr;
  if (!bad) bad = l.make_wish(&wish);
  const std::uint32_t none = 0;  // no split of k whose parts meet in any order
  if (!bad) bad = l.set_wish(wish, kBytesOfWorkspace, &kWorkspaceBytes, sizeof kWorkspaceBytes);
  if (!bad) bad = l.set_wish(wish, kReductionMask, &none, sizeof none);
  int found = 0;
  if (!bad)
    bad =
        l.ask(l.handle, made.product, made.left, made.right, made.out, made.out, wish, 1, &made.best, &found);
  if (wish) l.drop_wish(wish);
  return bad ? bad : found ? made.best.state : 15;
}
void drop(const Library& l, Made& made) {
  if (made.product) l.drop_product(made.product);
  for (void* layout : {made.left, made.right, made.out})
    if (layout) l.drop_layout(layout);
  made = {};
}

void refuse(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  kMma.refuse(p, words);
  if (words[0]) return;
  const char* why = "";
  if (p.bias || p.residual || p.factor || p.slope || p.activation != Activation::none)
    why = "it is called for the sum alone: no bias, activation, factor, residual or slope";
  else if (p.out != p.a && p.out != DType::f32)
    why = "the result is neither f32 nor of the kind of a and b";
  else if (library().why)
    why = library().why;
  std::snprintf(words, sizeof words, "%s", why);
}
Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream_of_caller) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const auto stream = static_cast<cudaStream_t>(stream_of_caller);
  const Product p = product_of(problem, args);
  const Lines lines = lines_of(p);
  if (!lines.there || !p.out.wide || p.k == 0)
    return {kName, 1, "it reads lines that begin on 16 bytes; cuda/gemm_mma takes every step"};
  StreamState* state = state_of(device, stream);
  if (!state) return kNoState;
  const std::lock_guard held(state->mutex);
  Status status = state->reserve(0, kWorkspaceBytes);
  if (!status.ok()) return status;
  static std::mutex mutex;
  static Made kept[64];
  const std::lock_guard lock(mutex);
  const Index key[10] = {p.m,
                         p.n,
                         p.k,
                         p.a.rows.step + p.a.columns.step,
                         p.b.rows.step + p.b.columns.step,
                         p.out.rows.step,
                         lines.turn_a,
                         lines.turn_b,
                         static_cast<Index>(p.a.dtype),
                         static_cast<Index>(p.out.dtype)};
  const Library& l = library();
  Made& made = kept[static_cast<std::size_t>(p.m * 31 + p.n * 7 + p.k + lines.turn_b) % 64];
  bool same = made.device == device;
  for (int i = 0; i < 10; ++i) same = same && made.key[i] == key[i];
  int bad = 0;
  if (!same) {
    drop(l, made);
    bad = make(l, p, lines, made);
    if (!bad) made.device = device;
    for (int i = 0; i < 10; ++i) made.key[i] = key[i];
  }
  const float one = 1, from = p.accumulate ? 1.0f : 0.0f;
  if (!bad)
    bad = l.run(l.handle, made.product, &one, p.b.data, made.left, p.a.data, made.right, &from, p.out.data,
                made.out, p.out.data, made.out, made.best.algorithm, state->scratch, kWorkspaceBytes, stream);
  return bad ? Status{kName, bad, "cuBLASLt has no algorithm for these sizes or did not start it"} : Status{};
}
void numerics(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/cublaslt %zu %s, %d processors, rows %lld",
                library().handle ? library().version() : 0, p.a == DType::bf16 ? "bf16" : "f16",
                facts_of(p.device.index).processors, static_cast<long long>(p.m));
}

}  // namespace

const GemmEntries kCublasLt = {kName, refuse, run, numerics};

}  // namespace headwise::cuda::gemm
