// moh_budget: trains Mixture-of-Head attention on a toy task, then lowers the number of heads a token may
// use, call by call: accuracy and time against k, as JSON.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ctime>
#include <iostream>

#include "headwise/headwise.h"

namespace hw = headwise;

constexpr hw::Index kMost = 8;
constexpr const char* kHead = "moh:heads=16,dim=8,shared=4,k=8";

hw::TransformerConfig config_of(hw::Index vocabulary, hw::Index tokens) {
  hw::TransformerConfig config{.vocabulary = vocabulary, .model_dim = 64, .feed_dim = 128, .depth = 2};
  config.heads = kHead, config.max_tokens = tokens;
  return config;
}

/// Microseconds of CPU a token of the same model over long sequences, one thread, the least of turns:
/// neighbours only ever add. What it has learnt does not matter to time.
void measure(double* least) {
  hw::Context ctx({.threads = 1});
  constexpr hw::Index kTokens = 2048;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  const hw::Transformer model(params, config_of(64, kTokens));
  const auto read = [](hw::Index, auto inputs, auto labels) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = labels[i] = static_cast<std::int32_t>(i * 31 % 64);
  };
  std::fill_n(least, kMost + 1, 1e30);
  for (int round = 0; round < 40; ++round)
    for (hw::Index k = 1; k <= kMost; ++k) {
      hw::NextToken judged(model, kTokens, read, ctx, {.head_budget = k});
      judged.judge(0, 1);  // plans
      const std::clock_t start = std::clock();
      judged.judge(0, 1);
      const double s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      least[k] = std::min(least[k], s / static_cast<double>(kTokens) * 1e6);
    }
}

// Argument: a number of steps.
int main(int argc, char** argv) {
  const hw::ToyExamples toy{.task = hw::ToyTask::sort, .length = 12, .symbols = 16, .seed = 5};
  hw::Context ctx;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  const hw::Transformer model(params, config_of(toy.classes(), toy.width()));
  const auto read = [&](hw::Index e, auto inputs, auto labels) { toy.read(e, inputs, labels); };
  hw::NextToken next(model, toy.width(), read, ctx);
  hw::Optimizer optimizer(params, hw::AdamWOptions{});
  hw::TrainerOptions options{.steps = argc > 1 ? std::stoi(argv[1]) : 1000, .micro_rows = 32, .clip = 1};
  options.rate = hw::Schedule::cosine(5e-3, 50, options.steps), options.out = &std::cerr;
  hw::Trainer(optimizer, 1 << 20, options, ctx).run([&](const hw::MicroBatch& m) { return next.learn(m); });

  double least[kMost + 1];
  measure(least);
  constexpr hw::Index kHeld = 1 << 20;  // examples from there on are never trained on
  std::cout << "{\"head\": \"" << kHead
            << "\", \"task\": \"sort 12 of 16 symbols\", \"steps\": " << options.steps
            << ", \"time\": \"CPU, one thread, 2048 tokens\", \"points\": [";
  for (hw::Index k = 1; k <= kMost; ++k) {
    hw::NextToken judged(model, toy.width(), read, ctx, {.head_budget = k});
    std::cout << (k > 1 ? ",\n" : "\n") << "  {\"k\": " << k
              << ", \"accuracy\": " << judged.accuracy(kHeld, 200)
              << ", \"nats\": " << judged.judge(kHeld, 200) << ", \"us_per_token\": " << least[k] << "}";
  }
  std::cout << "\n]}\n";
}
