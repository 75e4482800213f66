// Rows of the choice lists whose functions lie in the CUDA library: found there by their number when asked.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"
#include "headwise/ops/attention/backend_cuda.h"

namespace headwise {

template <class Problem, class Args>
struct CudaRows {
  using Kernel = KernelOf<Problem, Args>;
  using Entries = cuda::Entries<Problem, Args>;

  static const Entries& entries(std::size_t n) {
    const cuda::Table& table = *cuda_backend().table;
    if constexpr (std::is_same_v<Problem, AttentionProblem>)
      return table.kernels[n];
    else
      return table.backward[n];
  }
  static const AttentionProblem& forward(const Problem& p) {
    if constexpr (std::is_same_v<Problem, AttentionProblem>)
      return p;
    else
      return p.forward;
  }

  /// The row of the library's kernel n; its name is checked when the library is loaded.
  template <std::size_t n>
  static constexpr Kernel row(const char* name, bool by_name = false) {
    return {.name = name,
            .takes = kWritten,
            .limits = limits<n>,
            .workspace_bytes = [](const Problem&, int) -> std::size_t { return 0; },
            .run = nullptr,
            .numerics = [](const Problem& p) -> std::string {
              char words[cuda::kSentenceBytes] = "";
              entries(n).numerics(p, words);
              return words;
            },
            .device = Device::Kind::cuda,
            .by_name = by_name,
            .start = [](const Problem& p, const Args& a,
                        void* stream) { return entries(n).run(p, a, forward(p).device.index, stream); }};
  }

 private:
  template <std::size_t n>
  static std::string limits(const Problem& p) {
    if (forward(p).keys == KeyForm::packed)
      return "keys are packed, which is read on the CPU only; give plain ones";
    if (forward(p).probe.scores != ScoreStage::none)
      return "scores of every pair come from ref, which runs on the CPU only; copy q, k and v there, or ask "
             "for picked rows";
    if (const std::string& absent = cuda_backend().why; !absent.empty()) return absent;
    char why[cuda::kSentenceBytes] = "";
    entries(n).refuse(p, why);
    return why;
  }
};

}  // namespace headwise
