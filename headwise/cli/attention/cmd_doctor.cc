// headwise doctor: what this CPU can do, what was chosen, what is untested at this version.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/attention/machine.h"
#include "headwise/cli/attention/tested.h"
#include "headwise/distributed/engine.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/explain/roofline.h"

namespace headwise::cli {
namespace {

struct Level {
  std::string name;
  bool supported = false;
  Trial trial = Trial::untested;
  std::string how;
};
constexpr const char* kVariables[] = {"HEADWISE_ISA",         "HEADWISE_KERNELS",
                                      "HEADWISE_THREADS",     "HEADWISE_CUDA_PROCESSORS",
                                      "HEADWISE_AMX_WEIGHTS", "HEADWISE_DATA"};

struct Findings {
  Machine machine;
  std::vector<Level> levels;
  std::string chosen;
  int threads = 0;
  Roofline roofline;
  std::vector<std::string> problems;  // one sentence each
};

Findings look(bool measure) {
  Findings f;
  f.machine = this_machine();
  for (const cpu::IsaLevel& level : cpu::isa_levels()) {
    Level l;
    l.name = level.name, l.supported = level.supported();
    l.how = find_level(l.name, l.trial).how;
    f.levels.push_back(l);
  }
  const auto attempt = [&](auto&& body) {
    try {
      body();
    } catch (const Error& e) {
      const std::string problem = e.what();
      if (std::find(f.problems.begin(), f.problems.end(), problem) == f.problems.end())
        f.problems.push_back(problem);
    }
  };
  attempt([&] { f.chosen = cpu::chosen_isa().name; });
  attempt([&] {
    const Context ctx;
    f.threads = ctx.threads();
    // A small problem: reads the whole list of allowed kernels, so a misspelt name is found here.
    AttentionProblem p;
    p.heads.q = p.heads.k = p.heads.v = HeadLayout::split(1, 1);
    p.batch = p.q_tokens = p.kv_tokens = 1;
    const AttentionPlan plan(p, ctx);
  });
  if (measure && f.problems.empty()) f.roofline = measure_roofline(f.threads);
  return f;
}

std::string words_of(const Level& l) {
  switch (l.trial) {
    case Trial::tested: return "tested " + l.how;
    case Trial::emulated: return "tested " + l.how + " only; run headwise-selftest";
    case Trial::untested: return "untested at this version; run headwise-selftest";
  }
  return "";
}

template <class Kernel>
std::vector<std::string> names_of(std::span<const Kernel> kernels) {
  std::vector<std::string> names;
  for (const Kernel& kernel : kernels) names.emplace_back(kernel.name);
  return names;
}

nlohmann::ordered_json as_json(const Findings& f) {
  nlohmann::ordered_json j;
  j["version"] = kVersion;
  const Machine& m = f.machine;
  j["machine"] = {{"cpu", m.cpu}, {"architecture", m.architecture}, {"system", m.kernel}};
  for (const Cache& c : m.caches)
    j["machine"]["caches"].push_back({{"name", c.name}, {"kib", c.kilobytes}, {"shared_by", c.shared_by}});
  constexpr const char* trials[] = {"untested", "emulated", "tested"};
  for (const Level& l : f.levels)
    j["isa_levels"].push_back({{"name", l.name},
                               {"supported", l.supported},
                               {"trial", trials[static_cast<int>(l.trial)]},
                               {"where", l.how}});
  j["chosen_isa"] = f.chosen;
  j["kernels"] = names_of(attention_kernels(Device::Kind::cpu));
  j["backward_kernels"] = names_of(backward_kernels(Device::Kind::cpu));
  j["cuda"] = {{"devices", cuda_backend().devices},
               {"words", cuda_words()},
               {"kernels", names_of(attention_kernels(Device::Kind::cuda))},
               {"backward_kernels", names_of(backward_kernels(Device::Kind::cuda))}};
  for (const EngineEntry& e : engines())
    j["engines"].push_back({{"name", e.name}, {"purpose", e.purpose}, {"missing", e.missing()}});
  j["threads"] = {
      {"used", f.threads}, {"online", m.online}, {"affinity", m.affinity}, {"cgroup_quota", m.quota}};
  if (f.roofline.threads > 0)
    j["roofline"] = {{"peak_gflops", f.roofline.peak_gflops},
                     {"read_gbytes", f.roofline.read_gbytes},
                     {"ridge", f.roofline.ridge()}};
  j["environment"] = nlohmann::ordered_json::object();
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) j["environment"][name] = value;
  j["problems"] = f.problems;
  return j;
}

void print(const Findings& f, const Paint& paint) {
  const Machine& m = f.machine;
  const auto row = [&](std::string_view name, const std::string& value) {
    fmt::print("{}{:{}}{}\n", paint.bold(name), "", name.size() < 14 ? 14 - name.size() : 1, value);
  };
  row("headwise", kVersion);
  row("cpu", m.cpu + ", " + m.architecture + ", " + m.kernel);
  std::string caches;
  for (const Cache& c : m.caches)
    caches += fmt::format("{}{} {} KiB{}", caches.empty() ? "" : ", ", c.name, c.kilobytes,
                          c.shared_by > 1 ? fmt::format(" for {} CPUs", c.shared_by) : "");
  row("caches", caches.empty() ? "not told by the system" : caches);
  row("threads", fmt::format("{} used; {} CPUs online, {} by affinity, cgroup quota {}", f.threads, m.online,
                             m.affinity, m.quota > 0 ? fmt::format("{:.3g}", m.quota) : "none"));
  for (const Level& l : f.levels) {
    const std::string mark = l.name == f.chosen ? paint.good("chosen")
                             : l.supported      ? "can run"
                                                : "not on this CPU";
    row("isa " + l.name,
        fmt::format("{}; {}", mark, l.trial == Trial::tested ? words_of(l) : paint.warn(words_of(l))));
  }
  const auto names = [](const auto& kernels) {
    return fmt::format("{} (best first)", fmt::join(names_of(kernels), ", "));
  };
  row("kernels", names(attention_kernels(Device::Kind::cpu)));
  row("gradients", names(backward_kernels(Device::Kind::cpu)));
  row("cuda", cuda_words());
  if (f.roofline.threads > 0) {
    row("peak", fmt::format("{:.0f} GFLOP/s, f32 multiply-adds on {} threads at level {}",
                            f.roofline.peak_gflops, f.roofline.threads, f.roofline.isa));
    row("bandwidth",
        fmt::format("{:.1f} GB/s, reading memory on {} threads", f.roofline.read_gbytes, f.roofline.threads));
    row("ridge", fmt::format("{:.1f} FLOP per byte: below it memory sets the pace", f.roofline.ridge()));
  }
  for (const EngineEntry& e : engines()) {
    const std::string missing = e.missing();
    row("ranks",
        fmt::format("{}: {}", e.name, missing.empty() ? fmt::format("ready; {}", e.purpose) : missing));
  }
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    fmt::print("{} {}\n", paint.bold(name), value ? fmt::format("= \"{}\"", value) : "is not set");
  }
  for (const std::string& problem : f.problems) row("problem", paint.warn(problem));
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("doctor", "What this machine can do, what was chosen, what is untested here");
  word->footer(
      "Example: headwise doctor --json\n"
      "Exits with 1 when a HEADWISE_* variable holds something that cannot work.");
  struct Request {
    bool json = false, no_measure = false;
  };
  const auto r = std::make_shared<Request>();
  word->add_flag("--json", r->json, "One JSON object");
  word->add_flag("--no-measure", r->no_measure, "Leave out peak and bandwidth, about 100 ms");
  word->callback([r, &exit_code] {
    const Findings f = look(!r->no_measure);
    if (r->json)
      fmt::print("{}\n", as_json(f).dump(2));
    else
      print(f, Paint::for_stdout());
    if (f.problems.empty()) return;
    fmt::print(stderr, "headwise: {}\n", f.problems.front());
    exit_code = kFailed;
  });
}

}  // namespace headwise::cli
