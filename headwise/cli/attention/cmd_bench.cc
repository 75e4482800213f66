// headwise bench: attention forward, backward and decode on this machine, as shares of its measured roofs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/attention/machine.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/explain/roofline.h"

namespace headwise::cli {
namespace {

enum class Measured { forward, backward, decode };
constexpr const char* kMeasuredNames[] = {"forward", "backward", "decode"};

struct Case {
  Measured measured;
  DType dtype;
  Index batch, tokens, heads, kv_heads, dim;
  bool causal;
};
// One long sequence, a batch of short ones, a model that trains, a model that answers.
constexpr Case kCases[] = {
    {Measured::forward, DType::f32, 1, 2048, 8, 8, 64, false},
    {Measured::forward, DType::f32, 1, 2048, 8, 8, 64, true},
    {Measured::forward, DType::bf16, 1, 2048, 8, 8, 64, true},
    {Measured::forward, DType::f32, 16, 64, 8, 8, 24, false},
    {Measured::backward, DType::f32, 1, 1024, 8, 8, 64, true},
    {Measured::decode, DType::f32, 1, 16384, 32, 8, 128, false},
    {Measured::decode, DType::bf16, 1, 16384, 32, 8, 128, false},
};

struct Row {
  Case c = {};
  std::string kernel = {};
  double seconds = 0;  // the median of the calls
  double flop = 0, bytes = 0;
};

std::string words_of(const Case& c) {
  const std::string heads =
      c.heads == c.kv_heads ? fmt::format("{}", c.heads) : fmt::format("{}/{}", c.heads, c.kv_heads);
  return fmt::format("{} {} [{} {} {} {}]{}", kMeasuredNames[static_cast<int>(c.measured)], name_of(c.dtype),
                     c.batch, c.tokens, heads, c.dim, c.causal ? " causal" : "");
}

/// The median of calls that fill `seconds`, at least three, the first one not counted.
template <class Call>
double median_seconds(double seconds, const Call& call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> each;
  for (double all = 0; all < seconds || each.size() < 3; all += each.back()) {
    const auto start = Clock::now();
    call();
    each.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
  std::nth_element(each.begin(), middle, each.end());
  return *middle;
}

/// [batch tokens heads dim] of unit-normal values; a drawn piece repeats, since drawing them all takes
/// seconds.
Tensor values_for(const Case& c, Index tokens, Index heads, std::uint64_t seed) {
  Tensor all(c.dtype, {c.batch, tokens, heads, c.dim});
  const Tensor piece = random_normal({1 << 18}, c.dtype, seed);
  auto* to = static_cast<std::byte*>(all.view().data);
  const auto bytes = static_cast<std::size_t>(all.view().count() * size_of(c.dtype));
  const auto step = static_cast<std::size_t>(piece.view().count() * size_of(c.dtype));
  for (std::size_t at = 0; at < bytes; at += step)
    std::memcpy(to + at, piece.view().data, std::min(step, bytes - at));
  return all;
}

Row measure(const Case& c, double seconds, Context& ctx) {
  const Index q_tokens = c.measured == Measured::decode ? 1 : c.tokens;
  const Tensor q = values_for(c, q_tokens, c.heads, 1);
  const Tensor k = values_for(c, c.tokens, c.kv_heads, 2);
  const Tensor v = values_for(c, c.tokens, c.kv_heads, 3);
  Tensor out(c.dtype, {c.batch, q_tokens, c.heads, c.dim});
  Tensor lse(DType::f32, {c.batch, c.heads, q_tokens});
  const Mask causal = Mask::causal();
  AttentionArgs args{.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()};
  if (c.causal) args.mask = causal.set();
  if (c.measured == Measured::backward) args.lse = lse.view();

  Row row;
  row.c = c;
  const double tokens = static_cast<double>(c.tokens);
  const double pairs = c.causal ? tokens * (tokens + 1) / 2 : tokens * static_cast<double>(q_tokens);
  row.flop = 4.0 * static_cast<double>(c.batch * c.heads * c.dim) * pairs;
  row.bytes = 2.0 * static_cast<double>(c.batch * c.kv_heads * c.dim * c.tokens) *
              static_cast<double>(size_of(c.dtype));
  const AttentionPlan plan(problem_of(args), ctx);
  if (c.measured != Measured::backward) {
    row.kernel = plan.kernel();
    row.seconds = median_seconds(seconds, [&] { plan.run(args, ctx); });
    return row;
  }
  plan.run(args, ctx);
  const Tensor dout = values_for(c, q_tokens, c.heads, 4);
  Tensor dq(c.dtype, {c.batch, q_tokens, c.heads, c.dim});
  Tensor dk(c.dtype, {c.batch, c.tokens, c.kv_heads, c.dim});
  Tensor dv(c.dtype, {c.batch, c.tokens, c.kv_heads, c.dim});
  const BackwardArgs back{
      .forward = args, .dout = dout.view(), .dq = dq.view(), .dk = dk.view(), .dv = dv.view()};
  const BackwardPlan back_plan(backward_problem_of(back), ctx);
  row.kernel = back_plan.kernel();
  row.flop *= 2.5;  // five products of the forward's size, where it has two
  row.seconds = median_seconds(seconds, [&] { back_plan.run(back, ctx); });
  return row;
}

double peak_share(const Row& r, const Roofline& roof) { return r.flop / r.seconds / 1e9 / roof.peak_gflops; }
double read_share(const Row& r, const Roofline& roof) { return r.bytes / r.seconds / 1e9 / roof.read_gbytes; }

struct Request {
  int threads = 0;
  double seconds = 0.2;
  bool json = false;
};

int bench(const Request& r) {
  require(r.seconds > 0 && r.seconds <= 60, ErrorKind::bad_argument, "bench", "--seconds is ", r.seconds,
          "; give more than 0 and at most 60 for each row");
  Context ctx({.threads = r.threads});
  const Roofline roof = measure_roofline(ctx.threads());
  const Machine machine = this_machine();
  const Paint paint = Paint::for_stdout();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (!r.json) {
    fmt::print("{}, {} threads, level {}: {:.0f} GFLOP/s of f32 multiply-adds, {:.1f} GB/s read\n\n",
               machine.cpu, roof.threads, roof.isa, roof.peak_gflops, roof.read_gbytes);
    fmt::print("{}\n", paint.bold(fmt::format("{:<38}{:>11}{:>11}{:>13}{:>10}  {}",
                                              "pass dtype [batch tokens heads dim]", "median", "GFLOP/s",
                                              "of f32 peak", "of read", "kernel")));
  }
  for (const Case& c : kCases) {
    const Row row = measure(c, r.seconds, ctx);
    const bool decode = c.measured == Measured::decode;
    if (r.json) {
      rows.push_back({{"case", words_of(c)},
                      {"kernel", row.kernel},
                      {"seconds", row.seconds},
                      {"gflops", row.flop / row.seconds / 1e9},
                      {"peak_share", peak_share(row, roof)}});
      if (decode) rows.back()["read_share"] = read_share(row, roof);
      continue;
    }
    fmt::print("{:<38}{:>8.3f} ms{:>11.1f}{:>11.0f} %{:>10}  {}\n", words_of(c), row.seconds * 1e3,
               row.flop / row.seconds / 1e9, 100 * peak_share(row, roof),
               decode ? fmt::format("{:.0f} %", 100 * read_share(row, roof)) : "", row.kernel);
  }
  if (r.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"version", kVersion},
                                              {"cpu", machine.cpu},
                                              {"threads", roof.threads},
                                              {"isa", roof.isa},
                                              {"peak_gflops", roof.peak_gflops},
                                              {"read_gbytes", roof.read_gbytes},
                                              {"rows", rows}}
                           .dump(2));
  else
    fmt::print(
        "\nmedians of short runs: a first look; bf16 may pass 100 % of the f32 peak where the CPU "
        "multiplies "
        "it "
        "on its own units.\nmake bench measures with care, beside torch.\n");
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("bench", "How quick attention is here: forward, backward and decode, a few seconds");
  word->footer("Example: headwise bench\n         headwise bench --threads 1 --json");
  const auto r = std::make_shared<Request>();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_option("--seconds", r->seconds, "Time for each row")->capture_default_str();
  word->add_flag("--json", r->json, "One JSON object");
  word->callback([r, &exit_code] { exit_code = bench(*r); });
}

}  // namespace headwise::cli
