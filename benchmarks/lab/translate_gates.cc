// translate_gates: a trained translator goes on learning with a hard-concrete gate on every head of its
// encoder (Voita et al. 2019); translates a test set with all heads and with those that are left.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>

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

/// NAME=VALUE arguments; every one has its number or text here.
struct Settings {
  std::map<std::string, std::string> given = {{"price", "0.01"},     {"heads", "0"}, {"rate", "2e-4"},
                                              {"steps", "500"},      {"rows", "96"}, {"seconds", "0"},
                                              {"gate_rate", "0.03"}, {"model", ""}};
  void take(const std::string& argument) {
    const std::size_t at = argument.find('=');
    const auto found = given.find(argument.substr(0, at));
    if (at == argument.npos || found == given.end()) {
      std::cerr << "translate_gates: got " << argument << "; give";
      for (const auto& [name, value] : given) std::cerr << " " << name << "=" << value;
      std::cerr << "\n";
      std::exit(2);
    }
    found->second = argument.substr(at + 1);
  }
  double number(const std::string& name) const { return std::atof(given.at(name).c_str()); }
  hw::Index whole(const std::string& name) const { return std::atoll(given.at(name).c_str()); }
};

/// Gates have a set and an optimizer of their own: a loaded model takes no more parameters.
struct Gates {
  hw::ParamSet params{hw::DType::f32, 1};
  hw::LearntGates of;
  hw::Optimizer steps;
  bool fixed = false;
  explicit Gates(const std::vector<hw::Index>& heads)
      : of(params, heads), steps(params, hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9, .weight_decay = 0}) {}

  hw::Index left() const {
    hw::Index all = 0, gone = 0;
    for (const hw::Index h : of.heads()) all += h;
    for (const auto& layer : of.shut()) gone += static_cast<hw::Index>(layer.size());
    return all - gone;
  }
};

/// What an open head costs. Where a number of heads is wanted, the price follows the expected number of open
/// ones: the number aimed at falls evenly over the first third of the steps, and from the half on gates are
/// fixed as soon as no more are open.
class Price {
 public:
  Price(const Settings& s, hw::Index heads)
      : now_(s.number("price")), wanted_(s.whole("heads")), steps_(s.whole("steps")), heads_(heads) {}
  double now() const { return now_; }
  /// Behind step `step`, in which gates cost `price` together.
  void follow(hw::Index step, double price) {
    if (wanted_ == 0) return;
    const double part = std::min(1.0, 3.0 * static_cast<double>(step) / static_cast<double>(steps_)),
                 aim = static_cast<double>(heads_) - part * static_cast<double>(heads_ - wanted_);
    now_ *= price / now_ > aim ? 1.03 : 1 / 1.03;
  }
  bool ends(hw::Index step, hw::Index left) const {
    return wanted_ > 0 && 2 * step >= steps_ && left <= wanted_;
  }

 private:
  double now_;
  hw::Index wanted_, steps_, heads_;
};

void tune(hw::Translator& model, Gates& gates, const std::string& folder, const Settings& s,
          hw::Session& session) {
  const std::vector<std::string> from = lines_of(folder + "train.en"), to = lines_of(folder + "train.de");
  std::vector<hw::PairTokens> pairs;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    hw::PairTokens p{model.bpe().encode(from[i]), model.bpe().encode(to[i])};
    if (model.fits(p)) pairs.push_back(std::move(p));
  }
  hw::Optimizer optimizer(model.params(), hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9});
  hw::TrainerOptions options{.steps = s.whole("steps"), .micro_rows = s.whole("rows"), .clip = 1};
  options.rate =
      hw::Schedule::linear(s.number("rate"), std::min<hw::Index>(20, options.steps / 5), options.steps);
  options.seconds = s.number("seconds"), options.out = &std::cerr, options.seed = 1;
  Price price(s, gates.left());
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
          call.head_gates = gates.fixed ? gates.of.decided(call.memory) : gates.of.drawn(m.seed, call.memory);
          if (gates.fixed) return;
          slopes = call.dhead_gates =
              call.memory.take(hw::DType::f32, {call.head_gates.size[0], rows, gates.of.most()});
          hw::fill_zeros(slopes);
        });
        if (gates.fixed) return loss;
        gates.params.zero_grads();
        const double cost = gates.of.backward(slopes, m.seed, price.now(), m.weight);
        gates.steps.step(s.number("gate_rate"), session.ctx);
        price.follow(m.step, cost);
        gates.fixed = price.ends(m.step, gates.left());
        if (gates.fixed)
          std::cerr << "gates are fixed at step " << m.step << ", price " << price.now() << "\n";
        return loss + cost;
      });
}

/// What shut heads give is read no more: their columns of W_O become 0.
void silence(hw::Translator& model, const Gates& gates) {
  const auto gone = gates.of.shut();
  for (std::size_t layer = 0; layer < gone.size(); ++layer)
    for (const hw::Param& p : model.params().all()) {
      if (p.name != "source_stack.layers." + std::to_string(layer) + ".attention.out.weight") continue;
      const hw::Index wide = p.value.size[1], dim = wide / gates.of.heads()[layer];
      for (const hw::Index h : gone[layer])
        for (hw::Index row = 0; row < p.value.size[0]; ++row)
          std::fill_n(static_cast<float*>(p.value.data) + row * wide + h * dim, dim, 0.0f);
    }
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

// Arguments: folder as headwise_translate has it, folder of the translator, then settings NAME=VALUE. heads:
// how many are left, 0: as many as the price leaves; model: a folder for what was learnt. whole.hyp and
// gated.hyp are written; the output is JSON.
int main(int argc, char** argv) {
  Settings s;
  for (int i = 3; i < argc; ++i) s.take(argv[i]);
  if (argc < 3) s.take("no folders");
  const std::string folder = std::string(argv[1]) + "/";
  hw::Session session;
  hw::Translator model = hw::Translator::load(argv[2]);
  translate(model, folder, "whole.hyp", nullptr, session);
  const hw::Stack& stack = *model.model().source_stack();
  std::vector<hw::Index> heads;
  for (hw::Index i = 0; i < stack.options().depth; ++i)
    heads.push_back(stack.block(i).self_attention()->head_count());
  Gates gates(heads);
  const auto begin = std::chrono::steady_clock::now();
  tune(model, gates, folder, s, session);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  translate(model, folder, "gated.hyp", &gates.of, session);
  silence(model, gates);
  if (!s.given.at("model").empty()) model.save(s.given.at("model"));
  std::string kept;
  const auto gone = gates.of.shut();
  for (std::size_t layer = 0; layer < heads.size(); ++layer) {
    kept += kept.empty() ? "[" : ", [";
    bool first = true;
    for (hw::Index h = 0; h < heads[layer]; ++h)
      if (std::find(gone[layer].begin(), gone[layer].end(), h) == gone[layer].end())
        kept += (first ? "" : ", ") + std::to_string(h), first = false;
    kept += "]";
  }
  std::cout << "{\"steps\": " << s.whole("steps") << ", \"seconds\": " << took.count()
            << ", \"left\": " << gates.left() << ", \"fixed\": " << (gates.fixed ? "true" : "false")
            << ", \"kept\": [" << kept << "]}\n";
}
