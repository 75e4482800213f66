// Models on a real device against the CPU: every case of tests/layers/device_cases.h in f32 and bf16, the
// bits of repeats and of batches, and times. Exit 0: all near enough; 77: no device.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/device/layer_table.h"
#include "tests/layers/device_cases.h"

namespace {

using namespace headwise;
using namespace headwise::test;

constexpr Device kThere = Device::cuda(0);
int failures = 0;

void check(bool good, const std::string& words) {
  if (!good) ++failures;
  std::printf("%s %s\n", good ? "ok    " : "FAILED", words.c_str());
  std::fflush(stdout);
}
template <class F>
void tried(const std::string& name, F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    check(false, name + ": " + e.what());
  }
}

void compare(DeviceCase c, DType dtype, bool backward, double most) {
  c.dtype = dtype;
  const std::string name = text(dtype, backward ? " forward and backward: " : " forward: ", c.name);
  tried(name, [&] {
    const DeviceDistance d = distance_of(c, kThere, backward);
    check(d.y <= most && d.dx <= 4 * most && d.grads <= 8 * most,
          text(name, ": y ", d.y, " dx ", d.dx, " gradients ", d.grads));
  });
}

/// Rows of a sequence alone and among others, and again: bit for bit.
void compare_bits(DType dtype) {
  DeviceCase many{.name = "", .config = small_encoder(), .lengths = {9, 33, 2, 128, 17}, .dtype = dtype};
  many.config.max_tokens = 256;
  DeviceCase one = many;
  one.lengths = {9};
  tried("bits", [&] {
    const DeviceRun a = run_case(many, kThere, false), b = run_case(many, kThere, false),
                    alone = run_case(one, kThere, false);
    check(a.y == b.y, text(dtype, ": a repeat has the same bits"));
    check(std::equal(alone.y.begin(), alone.y.end(), a.y.begin()),
          text(dtype, ": a text alone has the bits it has among five"));
  });
}

/// Milliseconds of a forward, the copy of its rows included.
double time_forward(const TransformerConfig& config, DType dtype, Index texts, Index tokens, Device device) {
  Context ctx;
  StepMemory memory;
  ParamSet params(dtype, 11);
  const Transformer model(params, config);
  DeviceParams moved;
  constexpr std::string_view kAll[] = {""};
  if (!device.is_cpu()) moved = DeviceParams(params, kAll, device, ctx);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(texts * tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % 1000);
  const TransformerInput in{.ids = AnyView::packed(ids.data(), DType::i32, {texts * tokens}),
                            .sequences = {.batch = texts, .tokens = tokens}};
  const auto run = [&] {
    memory.reset();
    Call call{.ctx = ctx, .memory = memory};
    forward_abroad(model, in, call, nullptr);
  };
  const int rounds = device.is_cpu() ? 3 : 30;
  for (int i = 0; i < 3; ++i) run();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / rounds;
}

void time_all() {
  TransformerConfig c = small_encoder();
  c.vocabulary = 1000, c.model_dim = 384, c.feed_dim = 1536, c.depth = 6, c.heads = "mha:heads=12";
  c.max_tokens = 512;
  struct Shape {
    Index texts, tokens;
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape s : {Shape{1, 32}, Shape{64, 32}, Shape{64, 256}})
      tried("times", [&] {
        const double there = time_forward(c, dtype, s.texts, s.tokens, kThere);
        const double here = time_forward(c, dtype, s.texts, s.tokens, Device::cpu());
        std::printf("time   encoder 6 x 384, %s, [%d %d]: CUDA %.3f ms, CPU (all threads) %.3f ms\n",
                    text(dtype).c_str(), static_cast<int>(s.texts), static_cast<int>(s.tokens), there, here);
        std::fflush(stdout);
      });
}

}  // namespace

int main() {
  if (!cuda_layers().table) {
    std::printf("no device: %s\n", cuda_layers().why.c_str());
    return 77;
  }
  std::printf("%s\n", cuda_words().c_str());
  tried("memory", [] {
    Context ctx;
    const Tensor x = random_normal({1000, 7}, DType::f32, 1);
    Tensor back(DType::f32, {1000, 7});
    const DeviceTensor there = to(x.view(), kThere, ctx);
    to(there.view(), back.view(), ctx);
    check(std::memcmp(x.view().data, back.view().data, 28000) == 0, "copies there and back keep every bit");
  });
  try {
    DeviceBuffer(std::size_t{1} << 50, kThere);
    check(false, "a petabyte was given");
  } catch (const Error& e) {
    check(std::strstr(e.what(), "1125899906842624 bytes were asked on CUDA device 0, which has") != nullptr,
          e.what());
  }
  for (const DeviceCase& c : device_cases()) compare(c, DType::f32, false, 2e-5);
  for (const DeviceCase& c : device_cases()) compare(c, DType::bf16, false, 4e-2);
  for (const DeviceCase& c : device_cases()) compare(c, DType::f32, true, 5e-5);
  for (const DeviceCase& c : device_heads()) compare(c, DType::bf16, false, 4e-2);
  compare_bits(DType::f32), compare_bits(DType::bf16);
  time_all();
  std::printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
