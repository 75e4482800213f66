// translate_gates: a trained translator goes on learning with a hard-concrete gate on every head of its
// encoder (Voita et al. 2019); translates a test set with all heads and with those that are left.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "headwise/headwise.h"
#include "headwise/intent/recognizer/learnt_gates.h"
#include "headwise/translation/translator.h"

namespace hw = headwise;

namespace {

constexpr std::size_t kTestRows = 100;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.empty()) {
    std::cerr << "translate_gates: " << path << " has no lines; see translate.py\n";
    std::exit(2);
  }
  return lines;
}

struct Tuning {
  double price = 0.01, rate = 2e-4, seconds = 0, gate_rate = 0.03;
  hw::Index steps = 500, rows = 96;
};

/// Gates have a set and an optimizer of their own: a loaded model takes no more parameters.
struct Gates {
  hw::ParamSet params{hw::DType::f32, 1};
  hw::LearntGates of;
  explicit Gates(const std::vector<hw::Index>& heads) : of(params, heads) {}
};

void tune(hw::Translator& model, Gates& gates, const std::string& folder, const Tuning& t,
          hw::Session& session) {
  const std::vector<std::string> from = lines_of(folder + "train.en"), to = lines_of(folder + "train.de");
  std::vector<hw::PairTokens> pairs;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    hw::PairTokens p{model.bpe().encode(from[i]), model.bpe().encode(to[i])};
    if (model.fits(p)) pairs.push_back(std::move(p));
  }
  hw::Optimizer gate_steps(gates.params, hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9, .weight_decay = 0});
  hw::Optimizer optimizer(model.params(), hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9});
  hw::TrainerOptions options{.steps = t.steps, .micro_rows = t.rows, .clip = 1};
  options.rate = hw::Schedule::linear(t.rate, 20, t.steps), options.seconds = t.seconds;
  options.out = &std::cerr, options.seed = 1;
  hw::Trainer(optimizer, static_cast<hw::Index>(pairs.size()), options, session.ctx)
      .run([&](const hw::MicroBatch& m) {
        std::vector<const hw::PairTokens*> some;
        hw::Index rows = 0;
        for (const hw::Index e : m.examples) {
          some.push_back(&pairs[static_cast<std::size_t>(e)]);
          rows += static_cast<hw::Index>(some.back()->source.size()) + 1;
        }
        hw::AnyView slopes;
        const double loss = model.learn(some, m, 0.1, session, [&](hw::Call& call) {
          call.asked = hw::AttentionPart::source;
          call.head_gates = gates.of.drawn(m.seed, call.memory);
          slopes = call.dhead_gates =
              call.memory.take(hw::DType::f32, {call.head_gates.size[0], rows, gates.of.most()});
          hw::fill_zeros(slopes);
        });
        gates.params.zero_grads();
        const double price = gates.of.backward(slopes, m.seed, t.price, m.weight);
        gate_steps.step(t.gate_rate, session.ctx);
        return loss + price;
      });
}

void translate(const hw::Translator& model, const std::string& folder, const std::string& to,
               const hw::LearntGates* gates, hw::Session& session) {
  std::vector<std::vector<std::int32_t>> sources;
  for (const std::string& line : lines_of(folder + "test.en")) sources.push_back(model.bpe().encode(line));
  std::ofstream out(folder + to);
  for (std::size_t i = 0; i < sources.size(); i += kTestRows) {
    const auto some = std::span(sources).subspan(i, std::min(kTestRows, sources.size() - i));
    const auto found = model.translate(some, session, [&](hw::Call& call) {
      if (!gates) return;
      call.asked = hw::AttentionPart::source;
      call.head_gates = gates->decided(call.memory);
    });
    for (const auto& tokens : found) out << model.bpe().decode(tokens) << "\n";
  }
}

}  // namespace

// Arguments: folder as headwise_translate has it, folder of the translator, price of a head, rate, steps,
// pairs of a step, seconds (0: no limit), rate of the gates. whole.hyp and gated.hyp are written; the output
// is JSON.
int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "translate_gates: give folder, translator [price rate steps rows seconds gate_rate]\n";
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  const auto number = [&](int i, double otherwise) { return argc > i ? std::atof(argv[i]) : otherwise; };
  Tuning t;
  t.price = number(3, t.price), t.rate = number(4, t.rate), t.seconds = number(7, 0);
  t.gate_rate = number(8, t.gate_rate);
  t.steps = static_cast<hw::Index>(number(5, 500)), t.rows = static_cast<hw::Index>(number(6, 96));
  hw::Session session;
  hw::Translator model = hw::Translator::load(argv[2]);
  translate(model, folder, "whole.hyp", nullptr, session);
  const hw::Stack& stack = *model.model().source_stack();
  std::vector<hw::Index> heads;
  for (hw::Index i = 0; i < stack.options().depth; ++i)
    heads.push_back(stack.block(i).self_attention()->head_count());
  Gates gates(heads);
  tune(model, gates, folder, t, session);
  translate(model, folder, "gated.hyp", &gates.of, session);
  hw::Index left = 0;
  std::string kept;
  const auto gone = gates.of.shut();
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    kept += kept.empty() ? "[" : ", [";
    bool first = true;
    for (hw::Index h = 0; h < heads[layer]; ++h)
      if (std::find(gone[layer].begin(), gone[layer].end(), h) == gone[layer].end())
        kept += (first ? "" : ", ") + std::to_string(h), first = false, ++left;
    kept += "]";
  }
  std::cout << "{\"price\": " << t.price << ", \"steps\": " << t.steps << ", \"left\": " << left
            << ", \"kept\": [" << kept << "]}\n";
}
