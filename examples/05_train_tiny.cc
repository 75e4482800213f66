// Trains a character model: on a verse, which it then continues by heart, or on a text file: 05_train_tiny
// FILE STEPS.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>

#include "headwise/headwise.h"

namespace hw = headwise;

constexpr char kVerse[] =  // Hamlet
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer The slings and "
    "arrows of "
    "outrageous fortune, Or to take arms against a sea of troubles And by opposing end them.";
constexpr hw::Index kWidth = 32;

/// The most probable next character, until a window is full.
std::string go_on(const hw::Transformer& model, std::vector<std::int32_t> ids, hw::Context& ctx) {
  hw::StepMemory memory;
  while (ids.size() < kWidth) {
    const auto n = static_cast<hw::Index>(ids.size());
    hw::Call call{.ctx = ctx, .memory = memory};
    const hw::AnyView input = hw::AnyView::packed(ids.data(), hw::DType::i32, {n});
    const hw::AnyView logits = model.forward({.ids = input, .sequences = {.tokens = n}}, call, nullptr);
    const float* last = static_cast<const float*>(logits.data) + (n - 1) * logits.step[0];
    ids.push_back(static_cast<std::int32_t>(std::max_element(last, last + 128) - last));
  }
  return {ids.begin(), ids.end()};
}

int main(int argc, char** argv) {
  std::string text = kVerse;
  if (argc > 1) {
    std::ifstream file(argv[1], std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::vector<std::int32_t> tokens(text.begin(), text.end());
  const hw::TokenWindows windows(tokens, kWidth);

  hw::Context ctx;
  hw::ParamSet params(hw::DType::f32, /*seed=*/1);
  hw::TransformerConfig config{.vocabulary = 128, .model_dim = 64, .feed_dim = 128, .depth = 2};
  config.heads = "gqa:heads=4,kv_heads=2", config.max_tokens = kWidth;
  const hw::Transformer model(params, config);
  hw::Optimizer optimizer(params, hw::AdamWOptions{});
  hw::NextToken next(
      model, kWidth, [&](hw::Index e, auto inputs, auto labels) { windows.read(e, inputs, labels); }, ctx);
  hw::TrainerOptions options{.steps = argc > 2 ? std::stoi(argv[2]) : 150, .micro_rows = 6, .clip = 1};
  options.rate = hw::Schedule::cosine(5e-3, 10, options.steps);
  if (argc > 1) options.out = &std::cerr;
  std::cout << text.size() << " characters in " << windows.count() << " windows, " << params.count()
            << " parameters\n";
  hw::Trainer(optimizer, windows.count(), options, ctx).run([&](const hw::MicroBatch& m) {
    return next.learn(m);
  });
  std::cout << "loss below " << (next.judge(0, windows.count()) < 0.1 ? "0.1" : "5") << " nats a character\n";
  std::cout << go_on(model, {tokens.begin(), tokens.begin() + 12}, ctx) << '\n';
}
