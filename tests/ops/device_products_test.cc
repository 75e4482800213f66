// Products and rows on CUDA devices as a machine without one sees them: layouts, tiles, choices, refusals.
#include "headwise/ops/device/products.h"

#include <gtest/gtest.h>

#include <iterator>

#include "headwise/kernels/cuda/gemm/product.h"
#include "headwise/kernels/cuda/gemm/tiles.h"
#include "headwise/ops/device/layer_table.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

GemmProblem problem_of(Index m, Index n, Index k, DType t = DType::bf16) {
  return {.m = m, .n = n, .k = k, .a = t, .b = t, .out = t, .device = Device::cuda(0)};
}
template <class F>
std::string words_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(DeviceProducts, AxesWithOneLevelOfStepsAreFlat) {
  using cuda::gemm::axis_of;
  const MatrixAxis tokens{.size = 12, .inner = 4, .step = 8, .outer_step = 40}, joined{12, 4, 8, 32},
      outer{12, 1, 0, 7};
  EXPECT_FALSE(axis_of(tokens).flat());
  EXPECT_TRUE(axis_of(joined).flat());
  EXPECT_TRUE(axis_of(outer).flat());
  for (const MatrixAxis& axis : {tokens, joined, outer})
    for (Index i = 0; i < axis.size; ++i) EXPECT_EQ(axis_of(axis).at(i), axis.at(i));
}

TEST(DeviceProducts, LinesAreFoundAlongKAndAcrossIt) {
  using cuda::gemm::lines_of;
  alignas(16) static std::byte memory[64];
  const auto matrix = [&](Index rows, Index columns, Index row_step, Index column_step) {
    MatrixView v;
    v.data = memory, v.dtype = DType::bf16;
    v.rows = {rows, rows, row_step, 0}, v.columns = {columns, columns, column_step, 0};
    return v;
  };
  const auto lines = [&](const MatrixView& a, const MatrixView& b) {
    GemmArgs g;
    g.a = a, g.b = b, g.out = matrix(32, 48, 48, 1);
    return lines_of(cuda::gemm::product_of(problem_of(32, 48, 64), g));
  };
  const MatrixView a = matrix(32, 64, 64, 1), weight = matrix(64, 48, 1, 64);
  EXPECT_TRUE(lines(a, weight).there);
  EXPECT_FALSE(lines(a, weight).turn_a || lines(a, weight).turn_b);
  EXPECT_TRUE(lines(matrix(32, 64, 1, 32), weight).turn_a);
  EXPECT_TRUE(lines(a, matrix(64, 48, 48, 1)).turn_b);
  EXPECT_FALSE(lines(matrix(32, 64, 65, 1), weight).there) << "rows that begin between 16 bytes";
  EXPECT_FALSE(lines(matrix(32, 64, 128, 2), weight).there) << "every other number";
  EXPECT_FALSE(lines(matrix(32, 64, 0, 1), weight).there) << "one row for all";
}

TEST(DeviceProducts, TilesAreWideWhereThereAreManyAndSmallWhereProcessorsWouldIdle) {
  using namespace cuda::gemm;
  const auto best = [](Index m, Index n, Index k) {
    const WgmmaTile& t = wgmma_tile(kTilesBf16, static_cast<int>(std::size(kTilesBf16)), m, n, k, 132);
    return t.rows * 1000 + t.columns;
  };
  EXPECT_EQ(best(65536, 4096, 4096), 128256);
  EXPECT_EQ(best(4096, 768, 768), 128192);
  EXPECT_EQ(best(512, 3072, 768), 128128);
  EXPECT_EQ(best(1024, 768, 3072), 64128) << "48 tiles of 128 x 128 for 132 processors";
  EXPECT_EQ(best(128, 768, 768), 64064);
  EXPECT_EQ(wgmma_tile(kTurnedBf16, 3, 128, 768, 768, 132).rows, 128)
      << "no small tiles of turned lines of a";
}

TEST(DeviceProducts, FewRowsStream) {
  using cuda::gemm::stream_tile, cuda::gemm::streams;
  EXPECT_TRUE(streams(1, 50304, 64, 132) && streams(64, 4096, 4096, 132));
  EXPECT_TRUE(streams(256, 768, 3072, 132)) << "12 tiles of 128 x 128, and a chain of 192 steps";
  EXPECT_FALSE(streams(64, 50304, 4096, 132) || streams(65, 768, 768, 132) || streams(64, 768, 768, 132));
  const auto columns = [](Index m, Index n, Index k) { return stream_tile(m, n, k, 132).columns; };
  const auto rows = [](Index m, Index n, Index k) { return stream_tile(m, n, k, 132).rows; };
  EXPECT_EQ(columns(16, 8192, 64), 16) << "four tiles of 16 columns a processor";
  EXPECT_EQ(columns(16, 50304, 64), 64);
  EXPECT_EQ(rows(16, 768, 768), 16);
  EXPECT_EQ(rows(17, 768, 768), 32);
  EXPECT_EQ(rows(17, 4096, 4096), 64);
  EXPECT_EQ(rows(33, 768, 768), 64);
}

TEST(DeviceProducts, WithoutADeviceEveryKernelSaysWhy) {
  if (cuda_layers().table) GTEST_SKIP() << "there is a device here: headwise_cuda_layers_test asks it";
  const std::string why = cuda_layers().why;
  ASSERT_FALSE(why.empty());
  EXPECT_EQ(words_of([] { CudaProductPlan(problem_of(8, 8, 8)); }),
            "product: every kernel for CUDA device 0 refused; copy the tensors to the CPU for the rest\n  "
            "cuda/gemm_hopper: " +
                why + "\n  cuda/gemm_mma: " + why + "\n  cuda/gemm_parts: " + why +
                "\n  cuda/gemm_plain: " + why);
  EXPECT_EQ(words_of([] { start(cuda::NormOfTask{}, Device::cuda(0), nullptr); }), "norm_of: " + why);
}

TEST(DeviceProducts, WhatNoKernelTakesIsRefusedInWords) {
  GemmProblem packed = problem_of(8, 8, 8);
  packed.packed = true;
  for (const CudaGemmKernel& kernel : cuda_gemm_kernels()) {
    EXPECT_EQ(kernel.refuse(packed), "b is packed, which is read on the CPU only; give it as it lies");
    EXPECT_EQ(kernel.refuse(problem_of(8, 8, 8, DType::f64)), "f64 products run on the CPU only");
  }
  GemmProblem cpu = problem_of(8, 8, 8);
  cpu.device = {};
  EXPECT_EQ(words_of([&] { CudaProductPlan{cpu}; }),
            "product: the problem is for the CPU; make a ProjectionPlan, or name a CUDA device");
  EXPECT_NE(words_of([] { CudaProductPlan(problem_of(-1, 8, 8)); }).find("sizes start at 0"),
            std::string::npos);
  EXPECT_NE(words_of([] { CudaProductPlan(problem_of(8, 8, 8), "cuda/gem"); }).find("there is no kernel"),
            std::string::npos);
}

TEST(DeviceRows, BadTasksAreRefusedInWords) {
  const Device gpu = Device::cuda(0);
  EXPECT_EQ(words_of([&] { start(cuda::NormTask{.rows = 2, .columns = 4}, gpu, nullptr); }),
            "norm: x is missing; give its address on the device");
  EXPECT_EQ(words_of([&] { start(cuda::NormTask{.rows = -2}, gpu, nullptr); }),
            "norm: got [-2 0]; sizes start at 0");
  static float memory[8];
  const cuda::Rows x{memory, DType::f32, 4};
  EXPECT_EQ(
      words_of([&] { start(cuda::NormGradTask{.x = x, .dout = x, .rows = 2, .columns = 4}, gpu, nullptr); }),
      "norm_backward: the moments of the forward are missing; give mean and inverse [rows]");
  const cuda::EmbeddingTask grads{.table = {memory, DType::bf16, 4},
                                  .out = x,
                                  .ids = memory,
                                  .tokens = 1,
                                  .table_rows = 1,
                                  .columns = 4,
                                  .backward = true};
  EXPECT_EQ(words_of([&] { start(grads, gpu, nullptr); }),
            "embedding: the gradient of the table is bf16; give f32, since 16 bits lose what is added last");
  EXPECT_EQ(words_of([&] { start(cuda::RopeTask{.tokens = 1, .dim = 4, .pairs = 3}, gpu, nullptr); }),
            "rope: 3 pairs turn in heads of 4; give at most 128 and half of the head");
  EXPECT_EQ(words_of([&] { start(cuda::AdamWTask{.blocks = 1}, gpu, nullptr); }),
            "adamw: the table of parameters is missing");
  EXPECT_EQ(words_of([&] { start(cuda::NormOfTask{}, Device::cpu(), nullptr); }),
            "norm_of: the task is for the CPU; call the operation of its name");
}

}  // namespace
}  // namespace headwise
