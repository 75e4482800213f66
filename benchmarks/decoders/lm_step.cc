// lm_step: the training step of a small language model, timed on request: a number of steps in, the shortest
// one's seconds out.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "headwise/headwise.h"

namespace hw = headwise;

// Arguments: model_dim depth heads tokens rows threads. Each line of input is a number of steps; "loss"
// answers the last loss.
int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "lm_step: give model_dim depth heads tokens rows threads\n";
    return 2;
  }
  const auto number = [&](int i) { return static_cast<hw::Index>(std::atoll(argv[i])); };
  const hw::Index dim = number(1), tokens = number(4), rows = number(5);
  hw::Context ctx({.threads = static_cast<int>(number(6))});
  hw::ParamSet params(hw::DType::f32, 1);
  hw::TransformerConfig config{.vocabulary = 65, .model_dim = dim, .feed_dim = 4 * dim, .depth = number(2)};
  config.heads = hw::text("mha:heads=", number(3)), config.max_tokens = tokens;
  const hw::Transformer model(params, config);
  hw::Optimizer optimizer(params, hw::AdamWOptions{.weight_decay = 0.1});
  // Labels that can be learnt, so that both sides' losses fall alike: the next of (7 i + 3) mod 65.
  hw::NextToken next(
      model, tokens,
      [&](hw::Index e, auto inputs, auto labels) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          inputs[i] = static_cast<std::int32_t>((e * 31 + static_cast<hw::Index>(i) * 7) % 65);
          labels[i] = static_cast<std::int32_t>((e * 31 + static_cast<hw::Index>(i) * 7 + 7) % 65);
        }
      },
      ctx);
  std::vector<hw::Index> examples(static_cast<std::size_t>(rows));
  hw::Index step = 0;
  double loss = 0;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "loss") {
      std::cout << loss << std::endl;
      continue;
    }
    double shortest = 1e30;
    for (int i = std::atoi(line.c_str()); i > 0; --i, ++step) {
      for (std::size_t r = 0; r < examples.size(); ++r) examples[r] = step * rows + static_cast<hw::Index>(r);
      const auto start = std::chrono::steady_clock::now();
      params.zero_grads();
      loss = next.learn({.step = step, .examples = examples, .seed = static_cast<std::uint64_t>(step)});
      hw::clip_grads(params, 1.0, ctx);
      optimizer.step(1e-3, ctx);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      shortest = seconds < shortest ? seconds : shortest;
    }
    std::cout << shortest << std::endl;
  }
}
