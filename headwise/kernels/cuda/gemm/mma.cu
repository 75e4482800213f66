#include <cstdio>

#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/table/gemm.h"

namespace headwise::cuda::gemm {

Status mma_product(const Product& p, int device, cudaStream_t stream) {
  return p.a.dtype == DType::bf16 ? start_mma<bf16>(p, device, stream) : start_mma<f16>(p, device, stream);
}

namespace {

void refuse(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  const char* why = never(p);
  if (!*why && !halves(p)) why = "a and b are not both bf16 or both f16: cuda/gemm_plain multiplies them";
  std::snprintf(words, sizeof words, "%s", why);
  if (*why) return;
  const DeviceFacts facts = facts_of(p.device.index);
  if (!facts.there)
    std::snprintf(words, sizeof words, "there is no CUDA device %d", p.device.index);
  else if (facts.major < 8)
    std::snprintf(words, sizeof words, "capability %d.%d has no mma.sync of bf16; 8.0 has", facts.major,
                  facts.minor);
}
Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  return mma_product(product_of(problem, args), device, static_cast<cudaStream_t>(stream));
}
void numerics(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/gemm_mma %s k16", p.a == DType::bf16 ? "bf16" : "f16");
}

}  // namespace

const GemmEntries kMma = {"cuda/gemm_mma", refuse, run, numerics};

}  // namespace headwise::cuda::gemm
