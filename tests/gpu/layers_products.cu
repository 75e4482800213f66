// Products on a CUDA device against `ref` in double, and their bits against each other.
#include <cstring>
#include <tuple>

#include "headwise/kernels/ref/gemm.h"
#include "tests/gpu/layers.h"

namespace headwise::cuda {
namespace {

struct Case {
  Index m, n, k;
  DType in = DType::bf16, out = DType::bf16;
  bool turn_a = false, turn_b = false;
  Index pad = 0;
  Activation activation = Activation::none;
  bool bias = false, residual = false, factor = false, slope = false, accumulate = false, parts = false;
};
std::string words_of(const Case& c, const char* kernel) {
  std::string s = std::string(kernel) + " [" + std::to_string(c.m) + " " + std::to_string(c.n) + " " +
                  std::to_string(c.k) + "] " + std::string(name_of(c.in)) + " to " +
                  std::string(name_of(c.out)) + (c.turn_a ? " ta" : "") + (c.turn_b ? " tb" : "");
  s += " pad " + std::to_string(c.pad) + " " + std::string(name_of(c.activation));
  for (const auto& [on, word] : {std::pair{c.bias, " bias"},
                                 {c.residual, " residual"},
                                 {c.factor, " factor"},
                                 {c.slope, " slope"},
                                 {c.accumulate, " accumulate"}})
    if (on) s += word;
  return s;
}
/// cuBLASLt alone reads no other lines; whoever names it is told so.
bool takes_no_such_lines(const Status& s) {
  return !s.ok() && std::string(s.launch) == "cuda/cublaslt" && std::string(s.words).starts_with("it reads");
}
void product_case(const LayerTable& table, const Case& c) {
  const double scale = 1 / std::sqrt(static_cast<double>(max_of(c.k, 1)));
  Matrix a(c.in, c.m, c.k, c.turn_a, c.pad), b(c.in, c.k, c.n, !c.turn_b, c.pad, scale),
      bias(DType::f32, 1, c.n), residual(c.out, c.m, c.n, false, c.pad), factor(c.out, c.m, c.n),
      slope(c.out, c.m, c.n, false, 0, 0), out(c.out, c.m, c.n, false, c.pad, 1);
  const GemmProblem p{.m = c.m,
                      .n = c.n,
                      .k = c.k,
                      .a = c.in,
                      .b = c.in,
                      .out = c.out,
                      .accumulate = c.accumulate,
                      .bias = c.bias,
                      .residual = c.residual,
                      .factor = c.factor,
                      .slope = c.slope,
                      .activation = c.activation,
                      .parts = c.parts,
                      .device = Device::cuda(0)};
  std::vector<double> want = numbers(out), slopes(want.size());
  const auto wide = [&](std::vector<double>& x) {
    MatrixView v;
    v.data = x.data(), v.dtype = DType::f64, v.rows = {c.m, max_of(c.m, 1), c.n, 0},
    v.columns = {c.n, max_of(c.n, 1), 1, 0};
    return v;
  };
  GemmArgs r;
  r.a = a.on_host(), r.b = b.on_host(), r.out = wide(want), r.slope = wide(slopes),
  r.residual = residual.on_host(), r.factor = factor.on_host(), r.bias = bias.row(0);
  static ThreadPool pool(1);
  ref::kRefGemm.run(p, r, {}, pool);
  GemmArgs g;
  g.a = a.on_device(), g.b = b.on_device(), g.out = out.on_device(), g.slope = slope.on_device(),
  g.residual = residual.on_device(), g.factor = factor.on_device();
  AnyView on_device = bias.row(0);
  on_device.data = bias.device;
  g.bias = on_device;
  const std::vector<std::byte> before = out.host;
  for (int n = 0; n < table.gemm_count; ++n) {
    const GemmEntries& kernel = table.gemm[n];
    char why[kSentenceBytes] = "";
    kernel.refuse(p, why);
    if (why[0]) continue;
    const std::string words = words_of(c, kernel.name);
    out.host = before, out.up();
    const Status status = kernel.run(p, g, 0, nullptr);
    if (takes_no_such_lines(status)) continue;
    started(status, words);
    out.down();
    close(out, want, words);
    if (!c.slope) continue;
    slope.down();
    close(slope, slopes, words + " slopes");
  }
}
}  // namespace

void test_products(const LayerTable& table) {
  const Activation all[] = {Activation::none,      Activation::relu, Activation::gelu,
                            Activation::gelu_tanh, Activation::silu, Activation::sigmoid};
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [m, n, k] : {std::tuple<Index, Index, Index>{1, 1, 1},
                                  {7, 63, 65},
                                  {64, 128, 129},
                                  {130, 264, 200},
                                  {257, 72, 1600},
                                  {300, 520, 64}})
      for (int turns = 0; turns < 4; ++turns)
        product_case(table, {.m = m,
                             .n = n,
                             .k = k,
                             .in = t,
                             .out = turns == 3 ? DType::f32 : t,
                             .turn_a = turns > 1,
                             .turn_b = turns % 2 == 1,
                             .pad = turns,
                             .bias = turns == 0});
    for (const Activation kind : all)
      product_case(table, {.m = 70,
                           .n = 136,
                           .k = 80,
                           .in = t,
                           .out = t,
                           .activation = kind,
                           .bias = true,
                           .residual = true,
                           .factor = true,
                           .slope = true});
    product_case(table, {.m = 128,
                         .n = 256,
                         .k = 96,
                         .in = t,
                         .out = DType::f32,
                         .turn_a = true,
                         .turn_b = true,
                         .accumulate = true});
    product_case(table, {.m = 256, .n = 512, .k = 136, .in = t, .out = t, .turn_b = true});
    product_case(table, {.m = 40, .n = 1024, .k = 256, .in = t, .out = t, .bias = true});
    product_case(table, {.m = 5, .n = 24, .k = 0, .in = t, .out = t, .bias = true});
  }
  for (int turns = 0; turns < 4; ++turns)  // f32 in three parts of bf16
    product_case(table, {.m = 130,
                         .n = 72,
                         .k = 265,
                         .in = DType::f32,
                         .out = DType::f32,
                         .turn_a = turns > 1,
                         .turn_b = turns % 2 == 1,
                         .pad = turns,
                         .activation = Activation::gelu,
                         .bias = true,
                         .residual = true,
                         .accumulate = turns == 2,
                         .parts = true});
}
/// One class: a row's bits are those it has alone, in any batch and by either instruction.
void test_product_bits(const LayerTable& table) {
  // The last size takes the widest tiles at its most rows.
  for (const auto& [n, k, most] : {std::tuple<Index, Index, Index>{392, 64, 1024},
                                   {392, 776, 1024},
                                   {392, 4096, 1024},
                                   {392, 16384, 1024},
                                   {4096, 192, 2048}}) {
    Matrix a(DType::bf16, most, k), b(DType::bf16, k, n, true, 0, 0.1),
        first(DType::f32, most, n, false, 0, 0);
    for (const Index m : {most, Index{1}, Index{2}, Index{17}, Index{33}, Index{65}, Index{128}, Index{257}})
      for (int kernel = 0; kernel < table.gemm_count; ++kernel) {
        const std::string name = table.gemm[kernel].name;
        if (name == "cuda/gemm_plain" || name == "cuda/cublaslt") continue;  // other classes
        Matrix out(DType::f32, most, n, false, 0, 0);
        const GemmProblem p{.m = m,
                            .n = n,
                            .k = k,
                            .a = DType::bf16,
                            .b = DType::bf16,
                            .out = DType::f32,
                            .device = Device::cuda(0)};
        GemmArgs g;
        g.a = a.on_device(), g.b = b.on_device(), g.out = out.on_device();
        g.a.rows = {m, m, k, 0}, g.out.rows = {m, m, n, 0};
        char why[kSentenceBytes] = "";
        table.gemm[kernel].refuse(p, why);
        if (why[0]) continue;
        started(table.gemm[kernel].run(p, g, 0, nullptr), "bits");
        out.down();
        if (m == most && kernel == 0) first.host = out.host;
        Index off = 0;
        for (Index i = 0; i < m; ++i)
          for (Index j = 0; j < n; ++j)
            off += std::memcmp(&first.host[static_cast<std::size_t>(4 * (i * n + j))],
                               &out.host[static_cast<std::size_t>(4 * (i * n + j))], 4) != 0;
        check(off == 0, std::string("bits of ") + table.gemm[kernel].name + ", k " + std::to_string(k) +
                            ", rows " + std::to_string(m) + ": " + std::to_string(off) + " differ");
      }
  }
  // All ones: the sum is exactly k, so no tail is dropped.
  for (const Index k : {Index{1}, Index{63}, Index{65}, Index{127}, Index{1600}, Index{4095}}) {
    Matrix a(DType::bf16, 130, k), b(DType::bf16, k, 136, true), out(DType::f32, 130, 136, false, 0, 0);
    a.each([&](Index i, Index j) { a.put(i, j, 1); }), b.each([&](Index i, Index j) { b.put(i, j, 1); });
    a.up(), b.up();
    const GemmProblem p{.m = 130,
                        .n = 136,
                        .k = k,
                        .a = DType::bf16,
                        .b = DType::bf16,
                        .out = DType::f32,
                        .device = Device::cuda(0)};
    GemmArgs g;
    g.a = a.on_device(), g.b = b.on_device(), g.out = out.on_device();
    for (int kernel = 0; kernel < table.gemm_count; ++kernel) {
      char why[kSentenceBytes] = "";
      table.gemm[kernel].refuse(p, why);
      const Status status = why[0] ? Status{} : table.gemm[kernel].run(p, g, 0, nullptr);
      if (why[0] || takes_no_such_lines(status)) continue;
      started(status, "ones");
      out.down();
      bool good = true;
      out.each([&](Index i, Index j) { good = good && out.at(i, j) == static_cast<double>(k); });
      check(good, std::string("ones: ") + table.gemm[kernel].name + ", k " + std::to_string(k));
    }
  }
}

}  // namespace headwise::cuda
