// Models on a device, by a double of the CUDA library whose memory the CPU cannot touch
// (support/fake_cuda.cc).
#include <gtest/gtest.h>

#include "headwise/base/context.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/device/named.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/ops/row/embedding.h"
#include "tests/base/refusal.h"
#include "tests/layers/device_cases.h"
#include "tests/support/fake/fake_room.h"

namespace headwise {
namespace {

using namespace test;
constexpr Device kThere = Device::cuda(0);

TEST(DeviceLayers, TheDoubleIsThere) { ASSERT_EQ(cuda_words(), "0: a double of a device"); }

TEST(DeviceLayers, ForwardEqualsTheCpus) {
  for (const DeviceCase& c : device_cases()) EXPECT_LT(distance_of(c, kThere, false).y, 2e-6) << c.name;
  for (const DeviceCase& c : device_heads()) EXPECT_LT(distance_of(c, kThere, false).y, 2e-6) << c.name;
}

TEST(DeviceLayers, GradientsEqualTheCpus) {
  for (const DeviceCase& c : device_cases()) {
    const DeviceDistance d = distance_of(c, kThere, true);
    EXPECT_LT(d.y, 2e-6) << c.name;
    EXPECT_LT(d.dx, 1e-5) << c.name;
    EXPECT_LT(d.grads, 2e-4) << c.name;
  }
}

TEST(DeviceLayers, CopiesGoThereAndBack) {
  Context ctx({.threads = 1});
  const Tensor x = random_normal({3, 4}, DType::f32, 1);
  Tensor back(DType::f32, {3, 4});
  DeviceTensor there = to(x.view(), kThere, ctx);
  to(there.view(), back.view(), ctx);
  EXPECT_TRUE(std::ranges::equal(x.values<float>(), back.values<float>()));
  clear_bytes(there.view(), ctx);
  to(there.view(), back.view(), ctx);
  EXPECT_EQ(back.values<float>()[5], 0.0f);
  AnyView turned = back.view();
  std::swap(turned.step[0], turned.step[1]);
  EXPECT_EQ(test::refusal_of([&] { to(turned, there.view(), ctx); }),
            "to: got f32 [3 4] with steps that leave gaps or repeat; copy it to a row-major tensor first");
}

TEST(DeviceLayers, MemoryThatIsNotThereIsNamed) {
  EXPECT_EQ(test::refusal_of([] { DeviceBuffer(std::size_t{1} << 40, kThere); }),
            text("memory: 1099511627776 bytes were asked on CUDA device 0, which has ", 1 << 28, " left of ",
                 1 << 28, "; use smaller sizes or smaller micro-batches"));
  EXPECT_EQ(test::refusal_of([] { DeviceBuffer(1, Device::cuda(3)); }),
            "memory: CUDA device 3 is not there; this machine has 1, counted from 0");
  EXPECT_EQ(test::refusal_of([] { read_device("predict", "gpu"); }),
            "predict: device is \"gpu\"; give cpu, cuda, cuda:0 and on, or auto");
  EXPECT_EQ(test::refusal_of([] { read_device("predict", "cuda:4"); }),
            "predict: CUDA device 4 is not there; this machine has 1, counted from 0");
  EXPECT_EQ(read_device("predict", "auto"), kThere);
}

TEST(DeviceLayers, TensorsOfTwoPlacesAreRefused) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 4}), w(DType::f32, {3, 4}), y(DType::f32, {2, 3});
  DeviceTensor there(DType::f32, {2, 4}, kThere, ctx);
  EXPECT_EQ(test::refusal_of([&] {
              projection({.x = there.view(), .weight = w.view(), .out = y.view()}, Activation::none, ctx);
            }),
            "projection: x lies on CUDA device 0 but weight on the CPU; bring them together");
  EXPECT_EQ(test::refusal_of([&] { rms_norm(x.view(), {}, there.view(), {}, ctx); }),
            "rms_norm: x lies on the CPU but out on CUDA device 0; bring them together");
  const Tensor ids(DType::i64, {2});
  EXPECT_EQ(test::refusal_of([&] { embedding(there.view(), ids.view(), 1, there.view(), ctx); }),
            "embedding: table lies on CUDA device 0 but ids on the CPU; bring them together");
}

TEST(DeviceLayers, WhereTheDeviceIsFullParametersStay) {
  Context ctx({.threads = 1});
  ParamSet params(DType::f32, 1);
  params.make_grads();
  const Learned w = params.add("w", {3}, Init::normal(1));
  const void *value = w.value().data, *grad = w.grad().data;
  constexpr std::string_view kAll[] = {""};
  for (const int buffers : {0, 1, 2}) {  // for neither, for the values, for both
    const fake::Room room(buffers);
    DeviceParams moved;
    const std::string words = test::refusal_of([&] { moved = DeviceParams(params, kAll, kThere, ctx); });
    EXPECT_EQ(words.find("bytes were asked") == std::string::npos, buffers == 2) << words;
    EXPECT_EQ(w.value().on_cpu(), buffers < 2);
    moved.bring_home(ctx);
    EXPECT_EQ(w.value().data, value);
    EXPECT_EQ(w.grad().data, grad);
    EXPECT_TRUE(w.value().on_cpu() && w.grad().on_cpu());
  }
}

TEST(DeviceLayers, WhatDoesNotRunThereIsRefused) {
  DeviceCase c{.name = "", .config = small_encoder()};
  c.config.heads = "moh:heads=4,shared=1,k=1";
  EXPECT_EQ(test::refusal_of([&] { run_case(c, kThere, false); }),
            "head: moh computes beside attention on the CPU alone, but its rows lie on CUDA device 0; run it "
            "on the CPU, or take another head");
  c.config.heads = "mha:heads=4";
  Context ctx({.threads = 1});
  StepMemory memory;
  ParamSet params(DType::f32, 1);
  const Transformer model(params, c.config);
  constexpr std::string_view kAll[] = {""};
  const DeviceParams moved(params, kAll, kThere, ctx);
  Index offsets[] = {0, 2};
  std::int32_t ids[] = {1, 2};
  const TransformerInput in{.ids = AnyView::packed(ids, DType::i32, {2}),
                            .sequences = {.offsets = AnyView::packed(offsets, DType::i64, {2})}};
  Taps taps;
  Call call{.ctx = ctx, .memory = memory};
  call.taps = &taps;
  EXPECT_EQ(
      test::refusal_of([&] { forward_abroad(model, in, call, nullptr); }),
      "taps: the heads run on CUDA device 0, and their weights are copied on the CPU alone; run the model "
      "there");
  call.taps = nullptr;
  EXPECT_EQ(test::refusal_of([&] { model.forward(in, call, nullptr); }),
            "embed: the table lies on CUDA device 0 but the call's memory on the CPU; bring them together");
  ids[1] = 50;
  EXPECT_EQ(test::refusal_of([&] { forward_abroad(model, in, call, nullptr); }),
            "embedding: ids[1] is 50 but table has 50 rows; give numbers from 0 to 49");
  c.dtype = DType::f64;
  EXPECT_NE(test::refusal_of([&] { run_case(c, kThere, false); }).find("give f32, bf16 or f16"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
