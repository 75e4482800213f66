// moh_budget: trains a character model of Mixture-of-Head attention, then lowers the number of heads a token
// may use, call by call: accuracy and time against k, as JSON. SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "headwise/headwise.h"

namespace hw = headwise;

constexpr hw::Index kWidth = 256, kRows = 8, kMost = 8;
constexpr const char* kHead = "moh:heads=16,dim=16,shared=4,k=8";

// Arguments: FILE STEPS. The last tenth of the text is never trained on.
int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "moh_budget: give a text file and a number of steps\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  std::vector<std::int32_t> tokens;
  for (const char c : all) tokens.push_back(static_cast<unsigned char>(c) % 128);
  const hw::TokenWindows windows(tokens, kWidth);
  const hw::Index held = windows.count() / 10, seen = windows.count() - held;

  hw::Context ctx;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  hw::TransformerConfig config{.vocabulary = 128, .model_dim = 128, .feed_dim = 256, .depth = 2};
  config.heads = kHead, config.max_tokens = kWidth;
  const hw::Transformer model(params, config);
  const auto read = [&](hw::Index e, auto inputs, auto labels) { windows.read(e, inputs, labels); };
  hw::NextToken next(model, kWidth, read, ctx);
  hw::Optimizer optimizer(params, hw::AdamWOptions{});
  hw::TrainerOptions options{.steps = std::stoi(argv[2]), .micro_rows = kRows, .clip = 1};
  options.rate = hw::Schedule::cosine(3e-3, 20, options.steps), options.out = &std::cerr;
  hw::Trainer(optimizer, seen, options, ctx).run([&](const hw::MicroBatch& m) { return next.learn(m); });

  double least[kMost + 1];
  std::fill_n(least, kMost + 1, 1e30);
  for (int round = 0; round < 20; ++round)  // in turns: neighbours only ever add
    for (hw::Index k = 1; k <= kMost; ++k) {
      hw::NextToken judged(model, kWidth, read, ctx, {.head_budget = k});
      judged.judge(seen, kRows, kRows);  // plans
      const auto start = std::chrono::steady_clock::now();
      judged.judge(seen, kRows, kRows);
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      least[k] = s < least[k] ? s : least[k];
    }
  std::cout << "{\"head\": \"" << kHead << "\", \"steps\": " << options.steps
            << ", \"held_out_tokens\": " << held * kWidth << ", \"width\": " << kWidth << ", \"points\": [";
  for (hw::Index k = 1; k <= kMost; ++k) {
    hw::NextToken judged(model, kWidth, read, ctx, {.head_budget = k});
    std::cout << (k > 1 ? ",\n" : "\n") << "  {\"k\": " << k
              << ", \"accuracy\": " << judged.accuracy(seen, held)
              << ", \"nats\": " << judged.judge(seen, held)
              << ", \"us_per_token\": " << least[k] / static_cast<double>(kRows * kWidth) * 1e6 << "}";
  }
  std::cout << "\n]}\n";
}
