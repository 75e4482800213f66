// A double of libheadwise_cuda.so for machines without a device: plain loops over memory that nobody but its
// functions may touch. A layer that reads a device's tensor on the CPU dies by it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/random.h"
#include "headwise/kernels/cuda/table/backend.h"
#include "headwise/kernels/cuda/table/layers.h"
#include "headwise/kernels/ref/activation.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/device/products.h"
#include "headwise/ops/row/rope.h"
#include "tests/support/fake/fake_steps.h"

namespace headwise::fake {
namespace {

using cuda::kSentenceBytes;
using cuda::Status;

// Attention: the CPU's own, on the same views.
void home(AnyView& v) { v.device = Device::cpu().byte(); }
AttentionProblem home(AttentionProblem p) {
  p.device = Device::cpu(), p.run = {};
  return p;
}
AttentionArgs home(AttentionArgs a) {
  each_view(a, [](const char*, AnyView& v, bool) { home(v); });
  return a;
}
Status attend(const AttentionProblem& p, const AttentionArgs& a, int, void*) {
  Context ctx({.threads = 1});
  return opened([&] { AttentionPlan(home(p), ctx).run(home(a), ctx); });
}
Status attend_backward(const BackwardProblem& p, const BackwardArgs& a, int, void*) {
  Context ctx({.threads = 1});
  BackwardArgs b = a;
  b.forward = home(a.forward);
  home(b.dout);
  for (AnyView* v : {&b.dq, &b.dk, &b.dv, &b.dbias, &b.dslopes, &b.drelative, &b.dsinks, &b.dscale, &b.dgate,
                     &b.dmix_before, &b.dmix_after, &b.dmix_q, &b.dmix_k, &b.dalpha})
    home(*v);
  return opened([&] { BackwardPlan({home(p.forward), p.wants}, ctx).run(b, ctx); });
}
template <class Problem>
void take_all(const Problem&, char (&words)[kSentenceBytes]) {
  words[0] = '\0';
}
template <class Problem>
void take_none(const Problem&, char (&words)[kSentenceBytes]) {
  std::strcpy(words, "the double has one kernel");
}
template <class Problem>
void numerics(const Problem&, char (&words)[kSentenceBytes]) {
  std::strcpy(words, "double");
}

Status product(const GemmProblem& p, const GemmArgs& a, int, void*) {
  const auto at = [](const MatrixView& v, Index i, Index j) {
    return load_double(v.data, v.dtype, v.at(i, j));
  };
  return opened([&] {
    for (Index i = 0; i < p.m; ++i)
      for (Index j = 0; j < p.n; ++j) {
        double sum = p.accumulate ? at(a.out, i, j) : 0.0;
        for (Index k = 0; k < p.k; ++k) sum += at(a.a, i, k) * at(a.b, k, j);
        if (p.bias) sum += load_double(a.bias.data, a.bias.dtype, j * a.bias.step[0]);
        if (p.slope)
          store_double(a.slope.data, a.slope.dtype, a.slope.at(i, j), ref::slope_of(p.activation, sum));
        sum = ref::activate(p.activation, sum);
        if (p.factor) sum *= at(a.factor, i, j);
        if (p.residual) sum += at(a.residual, i, j);
        store_double(a.out.data, a.out.dtype, a.out.at(i, j), sum);
      }
  });
}

Status norm(const cuda::NormTask& t, int, void*) {
  const auto width = static_cast<double>(t.columns);
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row) {
      double mean = 0, square = 0;
      for (Index c = 0; t.layer && c < t.columns; ++c) mean += get(t.x, row, c) / width;
      for (Index c = 0; c < t.columns; ++c) square += std::pow(get(t.x, row, c) - mean, 2) / width;
      const double inverse = 1 / std::sqrt(square + static_cast<double>(t.eps));
      for (Index c = 0; t.out.data && c < t.columns; ++c) {
        double y = (get(t.x, row, c) - mean) * inverse;
        if (t.weight.data) y *= static_cast<double>(t.added) + load_double(t.weight.data, t.weight.dtype, c);
        if (t.bias.data) y += load_double(t.bias.data, t.bias.dtype, c);
        put(t.out, row, c, y);
      }
      if (t.mean) t.mean[row] = static_cast<float>(mean);
      if (t.inverse) t.inverse[row] = static_cast<float>(inverse);
    }
  });
}

Status norm_backward(const cuda::NormGradTask& t, int, void*) {
  const auto width = static_cast<double>(t.columns);
  std::vector<double> g(static_cast<std::size_t>(t.columns)), n = g;
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row) {
      const double mean = t.layer ? static_cast<double>(t.mean[row]) : 0.0;
      const auto inverse = static_cast<double>(t.inverse[row]);
      double sum = 0, along = 0;
      for (Index c = 0; c < t.columns; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const double dout = get(t.dout, row, c);
        g[i] = dout, n[i] = (get(t.x, row, c) - mean) * inverse;
        if (t.weight.data)
          g[i] *= static_cast<double>(t.added) + load_double(t.weight.data, t.weight.dtype, c);
        sum += g[i] / width, along += g[i] * n[i] / width;
        if (t.dweight) t.dweight[c] += static_cast<float>(dout * n[i]);
        if (t.dbias) t.dbias[c] += static_cast<float>(dout);
      }
      for (Index c = 0; t.dx.data && c < t.columns; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const double dx = inverse * (g[i] - (t.layer ? sum : 0.0) - n[i] * along);
        put(t.dx, row, c, dx + (t.residual.data ? get(t.residual, row, c) : 0.0));
      }
    }
  });
}

Status column_sums(const cuda::ColumnSumTask& t, int, void*) {
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row)
      for (Index c = 0; c < t.columns; ++c) t.sums[c] += static_cast<float>(get(t.x, row, c));
  });
}

Status activation(const cuda::ActivationTask& t, int, void*) {
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row)
      for (Index c = 0; c < t.columns; ++c) {
        const double x = get(t.x, row, c), gate = t.gate.data ? get(t.gate, row, c) : 0.0,
                     dout = t.backward ? get(t.dout, row, c) : 0.0;
        const double value = ref::activate(t.kind, t.gate.data ? gate : x),
                     slope = ref::slope_of(t.kind, t.gate.data ? gate : x);
        if (!t.gate.data) put(t.out, row, c, t.backward ? dout * slope : value);
        if (t.gate.data) put(t.out, row, c, (t.backward ? dout : x) * value);
        if (t.gate.data && t.backward) put(t.dgate, row, c, dout * x * slope);
      }
  });
}

Status dropout(const cuda::DropoutTask& t, int, void*) {
  return opened([&] {
    for (Index row = 0; row < t.rows; ++row)
      for (Index c = 0; c < t.columns; ++c) {
        const auto number = static_cast<std::uint64_t>(row + t.first_row);
        const Philox::Block words =
            Philox::block(t.seed, {static_cast<std::uint32_t>(c / 4), static_cast<std::uint32_t>(number),
                                   static_cast<std::uint32_t>(number >> 32), t.site});
        const bool kept = words[static_cast<std::size_t>(c % 4)] >= t.threshold && !t.none;
        put(t.out, row, c,
            (kept ? get(t.x, row, c) * t.scale : 0.0) + (t.residual.data ? get(t.residual, row, c) : 0.0));
      }
  });
}

Status rope(const cuda::RopeTask& t, int, void*) {
  return opened([&] {
    for (Index token = 0; token < t.tokens; ++token)
      for (Index head = 0; head < t.heads; ++head) {
        const Index from = token * t.x_step[0] + head * t.x_step[1],
                    to = token * t.out_step[0] + head * t.out_step[1];
        const auto position = static_cast<double>(t.positions ? t.positions[token] : t.start + token);
        for (Index c = 2 * t.pairs; c < t.dim; ++c)
          store_double(t.out, t.dtype, to + c, load_double(t.x, t.dtype, from + c));
        for (Index i = 0; i < t.pairs; ++i) {
          const bool half = t.kind == RopeKind::half;
          const Index a = half ? i : 2 * i, b = half ? i + t.pairs : 2 * i + 1;
          const double angle = position * t.frequency[i], cosine = std::cos(angle) * t.factor,
                       sine = std::sin(angle) * t.factor;
          const double xa = load_double(t.x, t.dtype, from + a), xb = load_double(t.x, t.dtype, from + b);
          store_double(t.out, t.dtype, to + a, xa * cosine - xb * sine);
          store_double(t.out, t.dtype, to + b, xb * cosine + xa * sine);
        }
      }
  });
}

Status embedding(const cuda::EmbeddingTask& t, int, void*) {
  return opened([&] {
    for (Index i = 0; i < t.tokens; ++i) {
      const Index id = t.wide_ids ? static_cast<const std::int64_t*>(t.ids)[i]
                                  : static_cast<const std::int32_t*>(t.ids)[i];
      const bool there = 0 <= id && id < t.table_rows;
      for (Index c = 0; c < t.columns; ++c) {
        const auto scale = static_cast<double>(t.scale);
        if (t.backward && there)
          put(t.table, id, c, get(t.table, id, c) + get(t.out, i, c) * scale);
        else if (!t.backward)
          put(t.out, i, c, there ? get(t.table, id, c) * scale : NAN);
      }
    }
  });
}

Status allocate(std::size_t bytes, int, void** memory) {
  *memory = Memory::one().take(bytes);
  if (*memory == nullptr) return {"fake/allocate", cuda::kNoMemory, "out of memory"};
  return opened([&] { std::memset(*memory, 0xff, bytes); });  // NaN, so that nobody counts on zeros
}
Status release(void* memory, int) {
  Memory::one().give(memory);
  return {};
}
// A copy that is waited for late arrives when its mark is: who reads before sees NaN.
struct Late {
  const void* from;
  void* to;
  std::size_t bytes;
};
std::vector<Late> under_way;
std::vector<void*> pinned;
Status copy(const void* from, void* to, std::size_t bytes, int, void*) {
  if (std::find(pinned.begin(), pinned.end(), to) != pinned.end()) {
    under_way.push_back({from, to, bytes});
    return {};
  }
  return opened([&] { std::memmove(to, from, bytes); });
}
Status clear(void* memory, std::size_t bytes, int, void*) {
  return opened([&] { std::memset(memory, 0, bytes); });
}
Status wait(int, void*) { return {}; }
Status pin(std::size_t bytes, int, void** memory) {
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xff, bytes);
  pinned.push_back(*memory);
  return {};
}
Status unpin(void* memory, int) {
  std::erase(pinned, memory);
  std::free(memory);
  return {};
}
Status mark(int, void*, void** mark) {
  if (*mark == nullptr) *mark = new std::vector<Late>;
  auto& mine = *static_cast<std::vector<Late>*>(*mark);
  mine.insert(mine.end(), under_way.begin(), under_way.end());
  under_way.clear();
  return {};
}
Status reached(int, void* mark) {
  auto& mine = *static_cast<std::vector<Late>*>(mark);
  return opened([&] {
    for (const Late& l : mine) std::memcpy(l.to, l.from, l.bytes);
    mine.clear();
  });
}
Status unmark(int, void* mark) {
  delete static_cast<std::vector<Late>*>(mark);
  return {};
}
Status room(int, std::size_t* left, std::size_t* all) {
  *left = Memory::one().left(), *all = kAll;
  return {};
}
int device_count() { return 1; }
void describe(int, char (&words)[kSentenceBytes]) { std::strcpy(words, "a double of a device"); }

}  // namespace
}  // namespace headwise::fake

extern "C" __attribute__((visibility("default"))) const headwise::cuda::Table* headwise_cuda_table() {
  using namespace headwise;
  static const auto kernels = [] {
    std::vector<cuda::Kernel> all;
    for (const AttentionKernel& k : attention_kernels())
      if (k.device == Device::Kind::cuda)
        all.push_back({k.name,
                       std::strcmp(k.name, "cuda/plain") == 0 ? fake::take_all<AttentionProblem>
                                                              : fake::take_none<AttentionProblem>,
                       fake::attend, fake::numerics<AttentionProblem>});
    return all;
  }();
  static const auto backward = [] {
    std::vector<cuda::BackwardKernel> all;
    for (const BackwardKernel& k : backward_kernels())
      if (k.device == Device::Kind::cuda)
        all.push_back({k.name,
                       std::strcmp(k.name, "cuda/plain_backward") == 0 ? fake::take_all<BackwardProblem>
                                                                       : fake::take_none<BackwardProblem>,
                       fake::attend_backward, fake::numerics<BackwardProblem>});
    return all;
  }();
  static const cuda::Table table = {cuda::kTableVersion,
                                    sizeof(AttentionProblem),
                                    sizeof(AttentionArgs),
                                    sizeof(BackwardProblem),
                                    sizeof(BackwardArgs),
                                    static_cast<int>(kernels.size()),
                                    static_cast<int>(backward.size()),
                                    kernels.data(),
                                    backward.data(),
                                    fake::device_count,
                                    fake::describe};
  return &table;
}

extern "C" __attribute__((visibility("default"))) const headwise::cuda::LayerTable* headwise_cuda_layers() {
  using namespace headwise;
  static const auto products = [] {
    std::vector<cuda::GemmEntries> all(cuda_gemm_kernels().size());
    for (const CudaGemmKernel& k : cuda_gemm_kernels())
      all[k.number] = {k.name, fake::take_all<GemmProblem>, fake::product, fake::numerics<GemmProblem>};
    return all;
  }();
  static const cuda::LayerTable table = {
      cuda::kLayerTableVersion,
      sizeof(GemmProblem),
      sizeof(GemmArgs),
      cuda::kRowBytes,
      static_cast<int>(products.size()),
      products.data(),
      {fake::norm, fake::norm_backward, fake::column_sums, fake::activation, fake::dropout, fake::rope,
       fake::embedding, fake::bag, fake::pool, fake::cross_entropy, fake::binary_cross_entropy, fake::adamw,
       fake::sgd, fake::norm_of},
      {fake::allocate, fake::release, fake::copy, fake::clear, fake::wait, fake::pin, fake::unpin, fake::mark,
       fake::reached, fake::unmark, fake::room}};
  return &table;
}
