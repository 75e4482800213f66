// Steps of a language model in one process, two ways in turns: with the roof of memory, with and without
// watched heads, guesses, policies. Usage: decoder_steps MODEL.gguf [--word value ...]; a line of JSON for
// each case. Without
// --cases they come as lines from standard input, "roof 64,512".
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "headwise/decoder/generator.h"

namespace {

using namespace headwise;

using Words = std::map<std::string, std::string>;
std::string word(const Words& w, const std::string& name, const std::string& otherwise) {
  const auto found = w.find(name);
  return found == w.end() ? otherwise : found->second;
}
std::vector<std::string> parts(const std::string& list) {
  std::vector<std::string> out(1);
  for (const char c : list)
    if (c == ',')
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

/// Milliseconds of the wall and of this process's CPU time.
struct Spent {
  double wall = 0, cpu = 0;
};
Spent now() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto ms = [](const timeval& t) {
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
  };
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double, std::milli>(wall).count(), ms(use.ru_utime) + ms(use.ru_stime)};
}
template <class F>
Spent spent(F&& f) {
  const Spent before = now();
  f();
  const Spent after = now();
  return {after.wall - before.wall, after.cpu - before.cpu};
}
Spent median(std::vector<Spent> all) {
  const auto middle = [&](double Spent::*part) {
    std::sort(all.begin(), all.end(), [&](const Spent& a, const Spent& b) { return a.*part < b.*part; });
    return all.empty() ? 0 : all[all.size() / 2].*part;
  };
  return {middle(&Spent::wall), middle(&Spent::cpu)};
}

struct Bench {
  Words words;
  Context ctx;
  std::unique_ptr<DecoderSource> source;
  Decoder model;
  Index steps;

  explicit Bench(const std::string& path, const Words& w)
      : words(w),
        ctx({.threads = std::stoi(word(w, "threads", "1"))}),
        source(open_decoder(path)),
        model(*source, options(w), ctx),
        steps(std::stoi(word(w, "steps", "24"))) {
    source.reset();
  }
  static DecoderOptions options(const Words& w) {
    DecoderOptions o;
    const std::string dtype = word(w, "dtype", "stored");
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      if (dtype == name_of(t)) o.dtype = t;
    o.rounded_rows = word(w, "rows", "exact") == "i8";
    return o;
  }
  KvOptions kv(Index tokens) const {
    KvOptions o;
    for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3})
      if (word(words, "kv", "f32") == name_of(t)) o.dtype = t;
    o.bytes = (tokens + 64) * token_bytes(o.dtype);
    return o;
  }
  Index token_bytes(DType t) const {
    const KvShape s = model.kv_shape();
    return s.layers * s.kv_heads * (s.head_dim + s.value_dim) * size_of(t);
  }
  std::vector<TokenId> drawn(Index count, std::uint64_t seed) const {
    std::vector<TokenId> ids;
    std::mt19937_64 draw(seed);
    const auto most = static_cast<std::uint64_t>(model.config().vocabulary);
    for (Index i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(draw() % most));
    return ids;
  }
  void say(const std::string& name, Index context, const std::string& figures) const {
    std::printf(
        "{\"case\": \"%s\", \"context\": %lld, \"weights\": \"%s\", \"rows\": \"%s\", \"kv\": \"%s\", "
        "\"threads\": %d, %s}\n",
        name.c_str(), static_cast<long long>(context), word(words, "dtype", "stored").c_str(),
        word(words, "rows", "exact").c_str(), word(words, "kv", "f32").c_str(), ctx.threads(),
        figures.c_str());
    std::fflush(stdout);
  }
};

/// One text of a bench, with its own cache.
struct Text {
  KvCache cache;
  Generator generator;
  std::vector<TokenId> tokens;
  Spent prefill, all;
  bool ended = false;

  Text(Bench& b, GenerateRequest r, const KvOptions& kv, const GeneratorOptions& o = {})
      : cache(b.model.kv_shape(), kv), generator(b.model, nullptr, cache, o) {
    generator.add(std::move(r));
    prefill = spent([&] {
      while (tokens.empty() && !ended) step(b);
    });
    all = {};
  }
  void step(Bench& b) {
    const Spent took = spent([&] { generator.step(b.ctx); });
    all.wall += took.wall, all.cpu += took.cpu;
    for (const GenerateEvent& e : generator.events()) {
      tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
      ended = ended || e.finish != Finish::none;
    }
  }
  Spent one(Bench& b) {
    const Spent before = all;
    step(b);
    return {all.wall - before.wall, all.cpu - before.cpu};
  }
};

std::string figure(const char* name, double x) {
  char line[96];
  std::snprintf(line, sizeof line, "\"%s\": %.4g", name, x);
  return line;
}
std::string pair_of(const char* one, const char* other, const Spent& a, const Spent& b) {
  return figure((std::string(one) + "_ms").c_str(), a.wall) + ", " +
         figure((std::string(other) + "_ms").c_str(), b.wall) + ", " + figure("times_wall", b.wall / a.wall) +
         ", " + figure("times_cpu", b.cpu / a.cpu);
}

/// Reads all of a buffer with every thread.
struct Sweep {
  std::vector<std::uint64_t> memory;
  std::vector<std::uint64_t> sums;
  explicit Sweep(Index bytes, int threads)
      : memory(static_cast<std::size_t>(bytes / 8), 1), sums(static_cast<std::size_t>(threads) * 8) {}
  void run(ThreadPool& pool) {
    constexpr Index kEach = 32768;
    const auto count = static_cast<Index>(memory.size());
    pool.parallel_for(ceil_div(count, kEach), [&](Index task, int worker) noexcept {
      std::uint64_t s[16] = {};
      const std::uint64_t* at = memory.data() + task * kEach;
      const Index n = min_of(kEach, count - task * kEach) / 16 * 16;
      for (Index i = 0; i < n; i += 16)
        for (int j = 0; j < 16; ++j) s[j] += at[i + j];
      for (const std::uint64_t x : s) sums[static_cast<std::size_t>(worker) * 8] += x;
    });
  }
};

GenerateRequest request(const Bench& b, Index context, Index tokens) {
  GenerateRequest r;
  r.prompt = b.drawn(context, static_cast<std::uint64_t>(context));
  r.max_tokens = tokens, r.ignore_end = true;
  return r;
}

/// A step beside the time that its bytes take to read.
void roof(Bench& b, Index context) {
  const KvOptions kv = b.kv(context + b.steps);
  Text text(b, request(b, context, b.steps + 1), kv);
  const Index bytes = b.model.weight_bytes() + context * b.token_bytes(kv.dtype);
  Sweep sweep(bytes, b.ctx.threads());
  std::vector<Spent> steps, sweeps;
  while (!text.ended) {
    steps.push_back(text.one(b));
    sweeps.push_back(spent([&] { sweep.run(b.ctx.pool()); }));
  }
  const Spent step = median(steps), read = median(sweeps);
  b.say("roof", context,
        pair_of("step", "read", step, read) + ", " +
            figure("read_GBs", static_cast<double>(bytes) / read.wall / 1e6) + ", " +
            figure("tokens_s", 1e3 / step.wall) + ", " + figure("tokens_cpu_s", 1e3 / step.cpu) + ", " +
            figure("prefill_tokens_s", 1e3 * static_cast<double>(context) / text.prefill.wall) + ", " +
            figure("prefill_tokens_cpu_s", 1e3 * static_cast<double>(context) / text.prefill.cpu));
}

/// Texts of 64 tokens at once.
void batch(Bench& b, Index texts) {
  constexpr Index kPrompt = 64;
  KvCache cache(b.model.kv_shape(), b.kv(texts * (kPrompt + b.steps + 48)));
  Generator generator(b.model, nullptr, cache, {.sequences = texts});
  for (Index i = 0; i < texts; ++i) {
    GenerateRequest r = request(b, kPrompt, b.steps + 1);
    r.prompt = b.drawn(kPrompt, static_cast<std::uint64_t>(i) + 1);
    generator.add(std::move(r));
  }
  Spent all;
  Index tokens = 0;
  while (true) {
    const Index before = generator.stats().drawn;
    bool more = true;
    const Spent took = spent([&] { more = generator.step(b.ctx); });
    if (!more) break;
    if (generator.stats().drawn - before != texts) continue;  // prompts are still read
    all.wall += took.wall, all.cpu += took.cpu, tokens += texts;
  }
  const double count = static_cast<double>(tokens);
  b.say("batch", texts,
        figure("tokens_s", 1e3 * count / all.wall) + ", " + figure("tokens_cpu_s", 1e3 * count / all.cpu));
}

void watch(Bench& b, Index context) {
  const KvOptions kv = b.kv(context + b.steps);
  GenerateRequest r = request(b, context, b.steps + 1);
  Text plain(b, r, kv);
  r.watch = true;
  Text watched(b, r, kv);
  std::vector<Spent> without, with;
  while (!plain.ended) without.push_back(plain.one(b)), with.push_back(watched.one(b));
  b.say("watch", context,
        pair_of("plain", "watched", median(without), median(with)) +
            (plain.tokens == watched.tokens ? "" : ", \"differs\": true"));
}

/// Every other kv head keeps the last 256 tokens and the first 16.
void policy(Bench& b, Index context) {
  KvOptions kv = b.kv(context + b.steps);
  Text full(b, request(b, context, b.steps + 1), kv);
  const KvShape s = b.model.kv_shape();
  kv.heads.resize(static_cast<std::size_t>(s.layers * s.kv_heads));
  for (std::size_t i = 0; i < kv.heads.size(); i += 2) kv.heads[i] = {.window = 256, .first = 16};
  Text half(b, request(b, context, b.steps + 1), kv);
  std::vector<Spent> all, some;
  Index held = 0, held_all = 0;
  while (!full.ended) {
    held = half.cache.stats().held_bytes, held_all = full.cache.stats().held_bytes;
    all.push_back(full.one(b)), some.push_back(half.one(b));
  }
  b.say("policy", context,
        pair_of("half", "full", median(some), median(all)) + ", " +
            figure("bytes", static_cast<double>(held) / static_cast<double>(held_all)));
}

/// Ids in circles of 48, as make_model.py --cycle makes them, or ids that never met; the same text twice.
void draft(Bench& b, Index context, bool repeats) {
  GenerateRequest r = request(b, context, 4 * b.steps);
  if (repeats)
    for (Index i = 0; i < context; ++i)
      r.prompt[static_cast<std::size_t>(i)] = static_cast<TokenId>(4800 + i % 48);
  else
    r.sampling.temperature = 1, r.sampling.seed = 7;
  NgramDrafter ngram;
  const KvOptions kv = b.kv(context + 4 * b.steps + 16);
  Text plain(b, r, kv), guessed(b, r, kv, {.drafter = &ngram});
  while (!plain.ended || !guessed.ended) {
    if (!plain.ended) plain.step(b);
    if (plain.tokens.size() > guessed.tokens.size() || plain.ended) guessed.step(b);
  }
  const GeneratorStats s = guessed.generator.stats();
  b.say(repeats ? "draft repeating" : "draft elsewhere", context,
        pair_of("guessed", "plain", guessed.all, plain.all) + ", " +
            figure("guessed", static_cast<double>(s.guessed)) + ", " +
            figure("right", static_cast<double>(s.right)) +
            (plain.tokens == guessed.tokens ? "" : ", \"differs\": true"));
}

/// The process's own memory beside weights and the keys and values that were written.
void memory(Bench& b, Index context) {
  const KvOptions kv = b.kv(context + b.steps);
  Text text(b, request(b, context, b.steps), kv);
  while (!text.ended) text.step(b);
  std::ifstream status("/proc/self/status");
  std::string line;
  double anonymous = 0;
  while (std::getline(status, line))
    if (line.starts_with("RssAnon:")) anonymous = std::stod(line.substr(8)) * 1024;
  const double weights = static_cast<double>(b.model.weight_bytes()),
               held = static_cast<double>((context + b.steps) * b.token_bytes(kv.dtype));
  b.say("memory", context,
        figure("beyond_MB", (anonymous - weights - held) / 1e6) + ", " + figure("weights_MB", weights / 1e6) +
            ", " + figure("kv_MB", held / 1e6));
}

/// Requests of a trace as they come, "seconds tokens ids"; the seconds of each one's tokens, a line a
/// request.
void load(Bench& b) {
  std::ifstream file(word(b.words, "trace", ""));
  std::vector<std::pair<double, GenerateRequest>> requests;
  Index most = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    double at = 0;
    GenerateRequest r;
    r.ignore_end = true;
    in >> at >> r.max_tokens;
    for (TokenId id = 0; in >> id;) r.prompt.push_back(id);
    most += static_cast<Index>(r.prompt.size()) + r.max_tokens + 16;
    requests.emplace_back(at, std::move(r));
  }
  KvCache cache(b.model.kv_shape(), b.kv(most));
  Generator generator(b.model, nullptr, cache, {.sequences = 64});
  std::vector<std::vector<double>> times(requests.size());
  const double begin = now().wall;
  const auto seconds = [&] { return 1e-3 * (now().wall - begin); };
  for (std::size_t next = 0; next < requests.size() || generator.running() + generator.waiting() > 0;) {
    for (; next < requests.size() && requests[next].first <= seconds(); ++next)
      generator.add(std::move(requests[next].second));
    if (generator.running() + generator.waiting() == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(requests[next].first - seconds()));
      continue;
    }
    generator.step(b.ctx);
    const double at = seconds();
    for (const GenerateEvent& e : generator.events())
      times[static_cast<std::size_t>(e.id)].insert(times[static_cast<std::size_t>(e.id)].end(),
                                                   e.tokens.size(), at);
  }
  for (const std::vector<double>& each : times) {
    for (const double t : each) std::printf("%.4f ", t);
    std::puts("");
  }
}

void run(Bench& b, const std::string& name, Index context) {
  if (name == "load") return load(b);
  if (name == "roof") return roof(b, context);
  if (name == "batch") return batch(b, context);
  if (name == "watch") return watch(b, context);
  if (name == "policy") return policy(b, context);
  if (name == "repeating" || name == "elsewhere") return draft(b, context, name == "repeating");
  if (name == "memory") return memory(b, context);
  throw Error(ErrorKind::bad_argument, text("--cases: there is no ", name,
                                            "; roof, batch, watch, policy, repeating, elsewhere, memory"));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Words words;
    for (int i = 2; i + 1 < argc; i += 2) words[std::string(argv[i]).substr(2)] = argv[i + 1];
    require(argc >= 2, ErrorKind::bad_argument, "decoder_steps",
            "give a model, then --dtype --rows --kv --threads --steps --contexts 64,512 --cases roof,watch");
    Bench bench(argv[1], words);
    const auto all = [&](const std::string& names, const std::string& contexts) {
      for (const std::string& name : parts(names))
        for (const std::string& context : parts(contexts)) run(bench, name, std::stoll(context));
    };
    if (words.contains("cases")) return all(words["cases"], word(words, "contexts", "64")), 0;
    std::puts("{\"ready\": true}"), std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);)
      all(line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decoder_steps: %s\n", error.what());
    return 1;
  }
}
