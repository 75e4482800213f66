// The kernel of the Hopper forward, its instances, and which of them a call takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward/products.cuh"

namespace headwise::cuda::hopper::forward {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_forward(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params) {
  extern __shared__ std::uint8_t raw[];
  const ForwardShared<C> shared(raw);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&maps.q), ptx::prefetch_map(&maps.k), ptx::prefetch_map(&maps.v),
        ptx::prefetch_map(&maps.out);
    for (int s = 0; s < 2; ++s) {
      ptx::mbarrier_init(shared.q_full + 8 * s, 1), ptx::mbarrier_init(shared.q_empty + 8 * s, C::kGroups);
      ptx::mbarrier_init(shared.k_full + 8 * s, 1),
          ptx::mbarrier_init(shared.k_empty + 8 * s, C::kGroups * 4);
      ptx::mbarrier_init(shared.v_full + 8 * s, 1),
          ptx::mbarrier_init(shared.v_empty + 8 * s, C::kGroups * 4);
    }
    for (int s = 0; s < 4; ++s) ptx::mbarrier_init(shared.told + 8 * s, 1);
    for (int g = 0; g < C::kGroups; ++g) ptx::store_word(shared.lost_of(g), 0);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (group == 0) {
    ptx::give_registers<C::kCopyRegisters>();
    if (threadIdx.x < 64 && ptx::elect_one()) {
      if (threadIdx.x >= 32)
        forward_copy_queries<C>(shared, maps, params);
      else if (params.pages.table)
        forward_copy_keys<C, true>(shared, maps, params);
      else
        forward_copy_keys<C, false>(shared, maps, params);
    }
  } else {
    ptx::take_registers<C::kProductRegisters>();
    constexpr Statistics kMost = C::kProbes ? Statistics::all : Statistics::none;
    if constexpr (C::kPasses == TileTerms::probes)  // apart: ways that meet would share registers
      if (params.probes.few)
        return forward_products<C, Statistics::few>(shared, &maps.out, params, group - 1);
    forward_products<C, kMost>(shared, &maps.out, params, group - 1);
  }
}

template <class C>
Status start_forward(const ForwardTask& task, const ForwardMaps& maps, const ForwardParams& params) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/hopper_forward";
  const Status status = allow_shared(kName, hopper_forward<C>, C::kShared, allowed, task.device);
  if (!status.ok()) return status;
  const auto grid = static_cast<unsigned>(params.tiles < task.processors ? params.tiles : task.processors);
  return launch({kName, dim3(grid), C::kThreads, C::kShared, task.stream}, hopper_forward<C>, maps, params);
}

template <class T, int HeadDim, int ValueDim, int Groups>
Status start_forward(const ForwardTask& task, const ForwardMaps& maps, const ForwardParams& params) {
  const TileTerms passes = task.passes;
  const auto start = [&]<TileTerms Passes>() {
    // 192 columns: a second slot of q leaves three groups no memory, and a bias and dropout no registers.
    constexpr int kQSlots =
        HeadDim == 256 || (HeadDim == 192 && (Groups == 3 || Passes == TileTerms::terms)) ? 1 : 2;
    return start_forward<ForwardConfig<T, HeadDim, ValueDim, Groups, kQSlots, Passes>>(task, maps, params);
  };
  // Three groups have no registers left for terms. Where three fit, two are for terms and, but at 96, for
  // short sequences.
  if constexpr (Groups == 2)
    if (passes == TileTerms::terms) return start.template operator()<TileTerms::terms>();
  if constexpr (Groups == 3 && HeadDim == ValueDim)
    if (passes == TileTerms::probes) return start.template operator()<TileTerms::probes>();
  if constexpr (Groups == 3 || HeadDim != 96)
    if (passes == TileTerms::band) return start.template operator()<TileTerms::band>();
  return {"cuda/hopper_forward", 1, "no such pass"};
}

template <class T>
Status attend_tiles(const ForwardTask& task, const ForwardMaps& maps, const ForwardParams& params) {
  const auto start = [&]<int HeadDim, int ValueDim, int Groups>() {
    return start_forward<T, HeadDim, ValueDim, Groups>(task, maps, params);
  };
  switch (task.head_dim * 10 + task.groups) {
    case 642: return start.template operator()<64, 64, 2>();
    case 643: return start.template operator()<64, 64, 3>();
    case 962: return start.template operator()<96, 96, 2>();
    case 963: return start.template operator()<96, 96, 3>();
    case 1282: return start.template operator()<128, 128, 2>();
    case 1283: return start.template operator()<128, 128, 3>();
    case 1922: return start.template operator()<192, 192, 2>();
    case 1923: return start.template operator()<192, 128, 3>();
    case 2562: return start.template operator()<256, 256, 2>();
    default: return {"cuda/hopper_forward", 1, "no instance of these widths"};
  }
}

}  // namespace headwise::cuda::hopper::forward
