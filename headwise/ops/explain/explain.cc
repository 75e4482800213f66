#include "headwise/ops/explain/explain.h"

#include <cstdio>
#include <iterator>
#include <utility>

#include "headwise/base/words.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/explain/shapes.h"
#include "headwise/spec/terms.h"

namespace headwise {
namespace {

std::string fixed(double x, int digits) {
  char line[64];
  std::snprintf(line, sizeof line, "%.*f", digits, x);
  return line;
}
/// 1234567 FLOP to "1.23 MFLOP".
std::string quantity(double x, const char* unit) {
  static constexpr const char* kPrefix[] = {" ", " k", " M", " G", " T", " P", " E"};
  std::size_t n = 0;
  for (; x >= 999.5 && n + 1 < std::size(kPrefix); x /= 1000) ++n;
  return fixed(x, n == 0 ? 0 : x < 10 ? 2 : x < 100 ? 1 : 0) + kPrefix[n] + unit;
}
std::string line(std::string_view word, const std::string& rest) {
  std::string s(word);
  s.resize(std::max<std::size_t>(word.size() + 1, 12), ' ');
  return s + rest + "\n";
}

const char* bound_of(const AttentionCost& cost, const Roofline& roof) {
  return cost.flops_per_byte() < roof.ridge() ? "memory-bound" : "compute-bound";
}

template <class Plan>
std::string kernel_table(const Plan& plan) {
  const std::vector<Refusal> refused = plan.refusals();
  std::size_t width = std::string_view(plan.kernel()).size();
  for (const Refusal& r : refused) width = std::max(width, r.kernel.size());
  std::string rows;
  const auto row = [&](const std::string& name, const std::string& what) {
    rows += line(rows.empty() ? "kernel" : "", name + std::string(width - name.size(), ' ') + "  " + what);
  };
  for (const Refusal& r : refused) row(r.kernel, "refused: " + r.why);
  row(plan.kernel(), "chosen");
  return rows;
}

std::string json_text(std::string_view s) { return json_string(s, {.line = "\\n"}); }
std::string json_number(double x) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", x);
  return digits;
}

/// "cpu", "cuda:1"
std::string short_name(Device device) { return device.is_cpu() ? "cpu" : text("cuda:", device.index); }

/// Sizes that costs are made of, as doubles.
struct CostSizes {
  double pairs, q, k, v, out, lse_bytes, item;  // all but the last two in elements
  static double real(Index n) { return static_cast<double>(n); }
  explicit CostSizes(const AttentionProblem& p) : item(real(size_of(p.dtype))) {
    const double heads = real(p.heads.q.heads), tensors = p.ragged ? 1 : real(p.batch);
    const double q_rows = tensors * real(p.ragged ? p.q_total : p.q_tokens),
                 kv_rows = tensors * real(p.ragged ? p.kv_total : p.kv_tokens);
    const auto row_width = [&](const HeadLayout& l) { return real(l.row > 0 ? l.row : l.slots() * l.dim); };
    pairs = heads * q_rows * real(p.kv_tokens);
    q = q_rows * row_width(p.heads.q), k = kv_rows * row_width(p.heads.k), v = kv_rows * row_width(p.heads.v);
    out = q_rows * heads * real(p.heads.v.dim);
    lse_bytes = q_rows * heads * (p.dtype == DType::f64 ? 8 : 4);
  }
};

/// "q, k, v, bias"
std::string names_of(const GradientSpec& wants) {
  std::string s;
  for (const Gradient& g : kGradients)
    if (wants.*g.wanted) s += (s.empty() ? "" : ", ") + std::string(g.word);
  return s;
}

/// What the machine can do against the cost: measured on the CPU, a CUDA device by its name alone.
std::string machine_lines(int threads, Device device, const AttentionCost& cost,
                          const ExplainOptions& options) {
  if (!device.is_cpu()) return line("machine", text(device, ": ", cuda_device_words(device.index)));
  const Roofline roof = options.roofline ? *options.roofline : measure_roofline(threads);
  return line("machine", text(roof.isa, ", ", roof.threads, roof.threads == 1 ? " thread: " : " threads: ",
                              fixed(roof.peak_gflops, 1), " GFLOP/s f32, ", fixed(roof.read_gbytes, 1),
                              " GB/s read (measured): ridge at ", fixed(roof.ridge(), 2), " FLOP per byte")) +
         line("bound", bound_of(cost, roof));
}

/// `gradients` is empty for a forward.
template <class Plan>
std::string in_words(const Plan& plan, const AttentionProblem& p, const AttentionCost& cost,
                     const std::string& gradients, const ExplainOptions& options) {
  std::string s = line(gradients.empty() ? "attention" : "backward", shape_summary(p));
  if (!gradients.empty()) s += line("gradients", gradients);
  s += kernel_table(plan);
  s += line("numerics", plan.numerics());
  if (p.device.is_cpu())
    s += line("workspace", text(plan.workspace_bytes(), " bytes for ", plan.threads(),
                                plan.threads() == 1 ? " thread" : " threads"));
  else
    s += line("workspace", "the stream's own, on the device");
  if (const std::string words = alignment_words(p); !words.empty()) s += line("positions", words);
  s +=
      line("cost", quantity(cost.flops, "FLOP") + (p.ragged ? " at most" : " with every pair open") + ", " +
                       quantity(cost.bytes, "B") + ", " + fixed(cost.flops_per_byte(), 2) + " FLOP per byte");
  s += machine_lines(plan.threads(), p.device, cost, options);
  if (options.shapes) s += "\n" + shape_tree(p);
  if (options.mermaid) s += "\n" + shape_mermaid(p);
  return s;
}

template <class Plan>
std::string in_json(const Plan& plan, const AttentionProblem& p, const AttentionCost& cost,
                    const std::string& gradients, const ExplainOptions& options) {
  std::string refused;
  for (const Refusal& r : plan.refusals())
    refused += text(refused.empty() ? "" : ", ", "{\"kernel\": ", json_text(r.kernel),
                    ", \"why\": ", json_text(r.why), "}");
  std::string s =
      text("{\"op\": ", gradients.empty() ? "\"attention\"" : "\"attention_backward\"",
           ", \"problem\": {\"dtype\": ", json_text(name_of(p.dtype)), ", \"batch\": ", p.batch,
           ", \"q_tokens\": ", p.q_tokens, ", \"kv_tokens\": ", p.kv_tokens, ", \"heads\": ", p.heads.q.heads,
           ", \"kv_heads\": ", p.heads.k.slots(), ", \"head_dim\": ", p.heads.q.dim,
           ", \"value_dim\": ", p.heads.v.dim, ", \"ragged\": ", p.ragged ? "true" : "false", "}");
  if (!gradients.empty()) s += text(", \"gradients\": ", json_text(gradients));
  s +=
      text(", \"kernel\": ", json_text(plan.kernel()), ", \"refusals\": [", refused,
           "], \"numerics\": ", json_text(plan.numerics()), ", \"device\": ", json_text(short_name(p.device)),
           ", \"workspace_bytes\": ", plan.workspace_bytes(), ", \"threads\": ", plan.threads(),
           ", \"positions\": ", json_text(alignment_words(p)));
  s += text(", \"flops\": ", json_number(cost.flops), ", \"bytes\": ", json_number(cost.bytes),
            ", \"flops_per_byte\": ", json_number(cost.flops_per_byte()));
  if (p.device.is_cpu()) {
    const Roofline roof = options.roofline ? *options.roofline : measure_roofline(plan.threads());
    s += text(", \"isa\": ", json_text(roof.isa), ", \"peak_gflops\": ", json_number(roof.peak_gflops),
              ", \"read_gbytes\": ", json_number(roof.read_gbytes),
              ", \"ridge\": ", json_number(roof.ridge()), ", \"bound\": ", json_text(bound_of(cost, roof)));
  }
  if (options.shapes) s += ", \"shapes\": " + json_text(shape_tree(p));
  if (options.mermaid) s += ", \"mermaid\": " + json_text(shape_mermaid(p));
  return s + "}";
}

}  // namespace

AttentionCost cost_of(const AttentionProblem& p) {
  const CostSizes n(p);
  AttentionCost cost;
  cost.flops = 2 * n.pairs * n.real(p.heads.q.dim + p.heads.v.dim);
  cost.bytes = (n.q + n.k + n.v + n.out) * n.item + (p.lse ? n.lse_bytes : 0);
  return cost;
}

AttentionCost cost_of(const BackwardProblem& problem) {
  const AttentionProblem& p = problem.forward;
  const CostSizes n(p);
  const GradientSpec& wants = problem.wants;
  AttentionCost cost;
  cost.flops = 2 * n.pairs * n.real(3 * p.heads.q.dim + 2 * p.heads.v.dim);
  cost.bytes = (n.q + n.k + n.v + 2 * n.out) * n.item + (p.lse ? n.lse_bytes : 0) +
               ((wants.q ? n.q : 0) + (wants.k ? n.k : 0) + (wants.v ? n.v : 0)) * n.item;
  return cost;
}

std::string alignment_words(const AttentionProblem& p) {
  if (p.q_tokens == p.kv_tokens) return "";
  if (p.ragged)
    return text("q_tokens (at most ", p.q_tokens, ") and kv_tokens (at most ", p.kv_tokens,
                ") differ: by default each sequence's query 0 stands at key 0 (top-left); q_start = end puts "
                "its last query at "
                "its last key (bottom-right)");
  return text("q_tokens (", p.q_tokens, ") and kv_tokens (", p.kv_tokens,
              ") differ: by default query 0 stands at key 0 (top-left); q_start = end, here ",
              p.kv_tokens - p.q_tokens, ", puts the last query at the last key (bottom-right)");
}

std::string explain(const AttentionPlan& plan, const ExplainOptions& options) {
  return in_words(plan, plan.problem(), cost_of(plan.problem()), "", options);
}
std::string explain(const BackwardPlan& plan, const ExplainOptions& options) {
  const BackwardProblem& p = plan.problem();
  return in_words(plan, p.forward, cost_of(p), names_of(p.wants), options);
}

std::string explain_json(const AttentionPlan& plan, const ExplainOptions& options) {
  return in_json(plan, plan.problem(), cost_of(plan.problem()), "", options);
}
std::string explain_json(const BackwardPlan& plan, const ExplainOptions& options) {
  const BackwardProblem& p = plan.problem();
  return in_json(plan, p.forward, cost_of(p), names_of(p.wants), options);
}

}  // namespace headwise
