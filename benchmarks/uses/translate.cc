// translate: trains an encoder-decoder on pairs of sentences, keeps it as a folder and translates a test set,
// one greedy token at a time.
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>

#include "headwise/headwise.h"
#include "headwise/translation/translator.h"

namespace hw = headwise;

namespace {

constexpr hw::Index kTestRows = 100;

[[noreturn]] void refuse(const std::string& why) {
  std::cerr << "translate: " << why << "\n";
  std::exit(2);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.empty()) refuse(path + " has no lines; see translate.py");
  return lines;
}

/// NAME=VALUE arguments; every one has its number or text here.
struct Settings {
  std::map<std::string, std::string> given = {{"heads", "mha:heads=4,dim=32"},
                                              {"cross_heads", ""},
                                              {"dim", "128"},
                                              {"feed", "512"},
                                              {"depth", "3"},
                                              {"source_depth", "3"},
                                              {"bpe", "4000"},
                                              {"dropout", "0.1"},
                                              {"smoothing", "0.1"},
                                              {"steps", "4000"},
                                              {"rows", "64"},
                                              {"rate", "0.001"},
                                              {"warm_up", "300"},
                                              {"decay", "constant"},
                                              {"seconds", "0"},
                                              {"model", ""},
                                              {"checkpoints", ""},
                                              {"test", "1"}};

  void take(const std::string& argument) {
    const std::size_t at = argument.find('=');
    const auto found = given.find(argument.substr(0, at));
    if (at == argument.npos || found == given.end()) {
      std::string all;
      for (const auto& [name, value] : given) all += " " + name + "=" + value;
      refuse("got " + argument + "; give" + all);
    }
    found->second = argument.substr(at + 1);
  }
  const std::string& text(const std::string& name) const { return given.at(name); }
  hw::Index whole(const std::string& name) const { return std::atoll(given.at(name).c_str()); }
  double number(const std::string& name) const { return std::atof(given.at(name).c_str()); }
};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// Of all threads of this process: what a busy machine takes away does not count.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::vector<hw::PairTokens> pairs_of(const hw::Translator& model, const std::string& path) {
  const std::vector<std::string> from = lines_of(path + ".en"), to = lines_of(path + ".de");
  std::vector<hw::PairTokens> pairs;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    hw::PairTokens p{model.bpe().encode(from[i]), model.bpe().encode(to[i])};
    if (model.fits(p)) pairs.push_back(std::move(p));
  }
  return pairs;
}

hw::TranslatorConfig config_of(const Settings& s) {
  return {.heads = s.text("heads"),
          .cross_heads = s.text("cross_heads"),
          .model_dim = s.whole("dim"),
          .feed_dim = s.whole("feed"),
          .depth = s.whole("depth"),
          .source_depth = s.whole("source_depth"),
          .dropout = s.number("dropout")};
}

/// A constant rate behind the warm-up lets a run end when its time is over; linear and cosine reach 0 at
/// `steps`, which learns more from as many steps.
hw::Schedule rate_of(const Settings& s) {
  const std::string& decay = s.text("decay");
  const double peak = s.number("rate");
  const hw::Index warm_up = s.whole("warm_up"), steps = s.whole("steps");
  if (decay == "constant") return hw::Schedule::constant(peak, warm_up);
  if (decay != "linear" && decay != "cosine")
    refuse("decay is " + decay + "; give constant, linear or cosine");
  if (steps <= warm_up) refuse("decay needs more steps than the warm-up has; give more, or a shorter one");
  return decay == "linear" ? hw::Schedule::linear(peak, warm_up, steps)
                           : hw::Schedule::cosine(peak, warm_up, steps);
}

hw::TrainResult train(hw::Translator& model, const std::vector<hw::PairTokens>& pairs, const Settings& s,
                      hw::Session& session) {
  hw::Optimizer optimizer(model.params(), hw::AdamWOptions{.beta2 = 0.98, .eps = 1e-9, .weight_decay = 0.01});
  hw::TrainerOptions options{.steps = s.whole("steps"), .micro_rows = s.whole("rows"), .clip = 1};
  options.rate = rate_of(s), options.seconds = s.number("seconds");
  options.folder = s.text("checkpoints"), options.save_every = options.folder.empty() ? 0 : 50;
  options.out = &std::cerr, options.seed = 1;
  return hw::Trainer(optimizer, static_cast<hw::Index>(pairs.size()), options, session.ctx)
      .run([&](const hw::MicroBatch& m) {
        std::vector<const hw::PairTokens*> some;
        for (const hw::Index e : m.examples) some.push_back(&pairs[static_cast<std::size_t>(e)]);
        return model.learn(some, m, s.number("smoothing"), session);
      });
}

double judge(const hw::Translator& model, const std::vector<hw::PairTokens>& pairs, hw::Session& session) {
  hw::LossSum sum;
  for (std::size_t i = 0; i < pairs.size(); i += kTestRows) {
    std::vector<const hw::PairTokens*> some;
    for (std::size_t j = i; j < std::min(pairs.size(), i + kTestRows); ++j) some.push_back(&pairs[j]);
    const hw::LossSum part = model.judge(some, session);
    sum.loss += part.loss, sum.counted += part.counted;
  }
  return sum.mean();
}

void translate(const hw::Translator& model, const std::string& folder, hw::Session& session) {
  std::vector<std::vector<std::int32_t>> sources;
  for (const std::string& line : lines_of(folder + "test.en")) sources.push_back(model.bpe().encode(line));
  std::ofstream out(folder + "test.hyp");
  for (std::size_t i = 0; i < sources.size(); i += kTestRows) {
    const auto some = std::span(sources).subspan(i, std::min<std::size_t>(kTestRows, sources.size() - i));
    for (const auto& tokens : model.translate(some, session)) out << model.bpe().decode(tokens) << "\n";
  }
}

}  // namespace

// Arguments: folder, then settings NAME=VALUE. The folder holds train.en, train.de, val.en, val.de, test.en;
// test.hyp is written, and the model where `model` names a folder. The last line of output is JSON.
int main(int argc, char** argv) {
  if (argc < 2) refuse("give folder, then NAME=VALUE");
  const std::string folder = std::string(argv[1]) + "/";
  Settings s;
  for (int i = 2; i < argc; ++i) s.take(argv[i]);
  std::string text;
  for (const char* language : {"train.en", "train.de"})
    for (const std::string& line : lines_of(folder + language)) text += line + "\n";

  hw::Session session;
  hw::Translator model(hw::Bpe::train(text, s.whole("bpe")), config_of(s), /*seed=*/1);
  const std::vector<hw::PairTokens> pairs = pairs_of(model, folder + "train"),
                                    val = pairs_of(model, folder + "val");
  const double begin = wall_seconds(), begin_cpu = cpu_seconds();
  const hw::TrainResult result = train(model, pairs, s, session);
  const double trained = wall_seconds(), trained_cpu = cpu_seconds();
  if (!s.text("model").empty()) model.save(s.text("model"));
  const double nats = judge(model, val, session);
  const double judged = wall_seconds();
  if (s.whole("test") != 0) translate(model, folder, session);
  std::cout << "{\"pairs\": " << pairs.size() << ", \"vocabulary\": " << model.bpe().vocabulary() + 2
            << ", \"parameters\": " << model.params().count() << ", \"steps\": " << result.step
            << ", \"rows\": " << s.whole("rows") << ", \"threads\": " << session.ctx.threads()
            << ", \"train_loss\": " << result.loss << ", \"val_nats_per_token\": " << nats
            << ", \"train_seconds\": " << trained - begin
            << ", \"train_cpu_seconds\": " << trained_cpu - begin_cpu
            << ", \"decode_seconds\": " << wall_seconds() - judged << "}\n";
}
