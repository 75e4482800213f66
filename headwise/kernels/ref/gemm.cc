#include "headwise/kernels/ref/gemm.h"

#include "headwise/kernels/ref/activation.h"

namespace headwise::ref {
namespace {

std::string refuse(const GemmProblem& p) {
  return p.packed ? "reads b as it lies, but b is packed for another kernel" : "";
}

void run(const GemmProblem& p, const GemmArgs& a, std::span<std::byte>, ThreadPool&) noexcept {
  const auto load = [](const MatrixView& m, Index i, Index j) {
    return load_double(m.data, m.dtype, m.at(i, j));
  };
  for (Index i = 0; i < p.m; ++i)
    for (Index j = 0; j < p.n; ++j) {
      double sum = p.accumulate ? load(a.out, i, j) : 0;
      for (Index l = 0; l < p.k; ++l) sum += load(a.a, i, l) * load(a.b, l, j);
      if (p.bias) sum += load_double(a.bias.data, a.bias.dtype, j * a.bias.step[0]);
      if (p.slope) store_double(a.slope.data, a.slope.dtype, a.slope.at(i, j), slope_of(p.activation, sum));
      sum = activate(p.activation, sum);
      if (p.factor) sum *= load(a.factor, i, j);
      if (p.residual) sum += load(a.residual, i, j);
      store_double(a.out.data, a.out.dtype, a.out.at(i, j), sum);
    }
}

}  // namespace

const GemmKernel kRefGemm{"ref",
                          refuse,
                          [](const GemmProblem&, int) { return std::size_t{0}; },
                          run,
                          [](const GemmProblem&) { return std::string("ref f64"); },
                          [](const GemmProblem&) { return std::size_t{0}; },
                          [](const GemmProblem&) -> const void* { return nullptr; },
                          [](const GemmProblem&, const MatrixView&, void*, ThreadPool&) noexcept {}};

}  // namespace headwise::ref
