// headwise explain: which kernel would run, why not the others, what it costs; from sizes alone.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/attention/explain_model.h"
#include "headwise/cli/attention/explain_ranks.h"
#include "headwise/heads/cost.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/run_facts.h"
#include "headwise/ops/explain/explain.h"

namespace headwise::cli {
namespace {

struct Request {
  Index batch = 1, q_tokens = 1024, kv_tokens = -1, kv_heads = -1, head_dim = 64, value_dim = -1, rim = 0,
        model_dim = 0, layer = 0, depth = 1;
  std::string heads = "8";  // a number, or a head variant's name with its settings
  std::string dtype, mask = "all", probe, kernels, q_start = "0", device = "cpu";
  HeadInputs numbers;  // softcap and dropout
  Terms terms;
  bool scale = false, lse = false;
  int threads = 0;
  bool backward = false, shapes = false, mermaid = false, json = false;
  RankQuestion ranks;
};

/// The number of plain heads, or -1 where a variant is named.
Index plain_heads(const Request& r) {
  Index heads = -1;
  if (!CLI::detail::lexical_cast(r.heads, heads)) return -1;
  require(heads >= 0 && heads <= kLargestSize, ErrorKind::bad_argument, "explain", "--heads is ", heads,
          "; give a number from 0 to ", kLargestSize, ", or a head such as gqa:heads=8,kv_heads=2");
  return heads;
}

/// A head variant with the parameters it declares.
struct Variant {
  ParamSet params;
  AnyHead head;
  explicit Variant(const Request& r) : head(make_head(r.heads, params, place_of(r))) {}
  static Place place_of(const Request& r) {
    return {r.layer, r.depth, r.model_dim ? r.model_dim : heads_in(r.heads) * r.head_dim};
  }
};

HeadSpec plain_spec(const Request& r, Index heads) {
  const Index kv_heads = r.kv_heads < 0 ? heads : r.kv_heads,
              value_dim = r.value_dim < 0 ? r.head_dim : r.value_dim;
  require(kv_heads > 0 ? heads % kv_heads == 0 : heads == 0, ErrorKind::bad_shape, "explain", "--heads (",
          heads, ") must be a multiple of --kv-heads (", kv_heads, "); change one of them");
  require(r.rim >= 0 && (r.rim == 0 || kv_heads == heads), ErrorKind::bad_argument, "explain", "--rim is ",
          r.rim, " with ", heads, " heads over ", kv_heads,
          " kv heads; overlapped heads need a rim from 0 up and as many kv heads");
  HeadSpec s;
  s.q = HeadLayout::split(heads, r.head_dim);
  s.k = HeadLayout::grouped(heads, kv_heads, r.head_dim);
  s.v = HeadLayout::grouped(heads, kv_heads, value_dim);
  if (r.rim > 0) {
    s.q = s.k = HeadLayout::overlapped(heads, r.head_dim, r.rim);
    s.v = HeadLayout::overlapped(heads, value_dim, r.rim);
  }
  return s;
}

HeadSpec spec_from(const Request& r) {
  if (const Index heads = plain_heads(r); heads >= 0) return plain_spec(r, heads);
  require(r.kv_heads < 0 && r.value_dim < 0 && r.rim == 0, ErrorKind::bad_argument, "explain",
          "--heads names ", r.heads,
          ", so its settings say kv_heads, value_dim and rim; leave the options out");
  return Variant(r).head.spec();
}

AttentionProblem problem_from(const Request& r) {
  require(r.numbers.softcap == 0 || is_softcap(r.numbers.softcap), ErrorKind::bad_argument, "explain",
          "--softcap is ", r.numbers.softcap, kSoftcapWayOut);
  require(r.numbers.dropout >= 0 && r.numbers.dropout < 1, ErrorKind::bad_argument, "explain",
          "--dropout is ", r.numbers.dropout, "; give a probability from 0 up and below 1");
  AttentionProblem p;
  p.dtype = parse_dtype(r.dtype.empty() ? "f32" : r.dtype);
  p.batch = r.batch, p.q_tokens = r.q_tokens;
  p.kv_tokens = r.kv_tokens < 0 ? r.q_tokens : r.kv_tokens;
  p.heads = spec_from(r);
  p.heads.terms = either(p.heads.terms, r.terms);
  for (const ScoreTerm& t : kScoreTerms)
    if (t.number != nullptr && r.numbers.*t.number != 0) p.heads.terms.*t.planned = true;
  p.lse = r.lse;
  p.probe = parse_probe(r.probe);
  return p;
}

/// Counting open pairs walks along the mask's edges: a diagonal of this many tokens takes a moment, not
/// minutes.
constexpr Index kMostCounted = Index{1} << 20;

/// What the mask leaves open, over the sequences and heads it tells apart.
struct MaskShare {
  std::string text;
  bool counted = false;
  double pairs = 0, open = 0;
  double share() const { return pairs > 0 ? open / pairs : 0; }
};

Index start_of(const Request& r, const AttentionProblem& p) {
  if (r.q_start == "end") return p.kv_tokens - p.q_tokens;
  Index start = 0;
  require(CLI::detail::lexical_cast(r.q_start, start), ErrorKind::bad_argument, "explain", "--q-start is \"",
          r.q_start, "\"; give a position or \"end\" (the last query meets the last key)");
  return start;
}

/// The mask as given, and the window a named head joins with it.
Mask mask_from(const Request& r) {
  Mask mask = parse_mask(r.mask);
  const Index window = plain_heads(r) < 0 ? Variant(r).head.window() : -1;
  if (window < 0) return mask;
  if (mask.heads() == 1) return std::move(mask) & Mask::window(window, window);
  return mask;  // a mask for each head: the window joins each of them
}

MaskShare share_of(const Request& r, const AttentionProblem& p) {
  const Mask mask = mask_from(r);
  mask.check(p.batch, p.heads.normal_heads(), p.q_tokens, p.kv_tokens);
  MaskShare s{.text = to_text(mask)};
  const Index q_start = start_of(r, p), heads = mask.heads();
  s.counted = p.q_tokens <= kMostCounted && p.kv_tokens <= kMostCounted;
  if (!s.counted) return s;
  const double pairs = static_cast<double>(p.q_tokens) * static_cast<double>(p.kv_tokens);
  // Only lengths tell sequences apart; any other mask is the same in all.
  const Index sequences = s.text.find("lengths") == std::string::npos ? min_of(p.batch, 1) : p.batch;
  for (Index b = 0; b < sequences; ++b)
    for (Index h = 0; h < heads; ++h) {
      s.pairs += pairs;
      s.open += static_cast<double>(open_pairs(mask, p.q_tokens, p.kv_tokens, {b, h, q_start}));
    }
  return s;
}

/// The library's text with the chosen kernel and the refusals in colour.
std::string painted(const std::string& explained, const Paint& paint) {
  std::string out;
  std::string_view rest = explained;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    const bool chosen = line.find("chosen") != std::string_view::npos,
               refused = line.find("refused") != std::string_view::npos;
    out += chosen ? paint.good(line) : refused ? paint.warn(line) : std::string(line);
    out += '\n';
  }
  return out;
}

/// What a named head is, before its attention is explained.
std::string head_lines(const Request& r) {
  const Variant v(r);
  const Widths w = v.head.widths();
  return fmt::format(
      "{:<12}{}\n{:<12}{}\n{:<12}W_Q {}, W_K {}, W_V {}, {}\n{:<12}{} of its own, at model_dim {}\n", "head",
      v.head.settings(), "heads meet", v.head.meets(), "columns", w.q, w.k, w.v,
      w.out ? fmt::format("W_O {}", w.out) : "no W_O", "parameters", v.params.count(),
      Variant::place_of(r).model_dim);
}

AttentionProblem& forward_of(AttentionProblem& p) { return p; }
AttentionProblem& forward_of(BackwardProblem& p) { return p.forward; }

/// Every gradient there is to ask of the forward these options describe.
BackwardProblem backward_problem_from(const Request& r) {
  BackwardProblem p;
  p.forward = problem_from(r);
  p.forward.lse = true;  // what the backward starts from
  for (const Gradient& g : kGradients)
    p.wants.*g.wanted = g.term == nullptr || (g.term->planned && p.forward.heads.terms.*g.term->planned);
  p.wants.scale = r.scale, p.wants.alpha = p.forward.heads.norm == Norm::entmax;
  if (plain_heads(r) >= 0) return p;
  HeadInputs learned;
  HeadGrads grads;
  const Variant v(r);
  v.head.bind(learned, grads);
  p.wants.mix_before = learned.mix_before.given(), p.wants.mix_after = learned.mix_after.given();
  p.wants.mix_q = p.wants.mix_k = p.forward.heads.mix_stages() > 0;
  return p;
}

/// The device of --device, and for a CUDA one what its kernels choose by: the mask and where queries start;
/// addresses are taken as fit.
template <class Problem>
Problem on_device(const Request& r, Problem problem) {
  if (r.device == "cpu") return problem;
  AttentionProblem& p = forward_of(problem);
  p.device = Device::cuda(0);
  const Mask mask = mask_from(r);
  mask.check(p.batch, p.heads.normal_heads(), p.q_tokens, p.kv_tokens);
  Index start = start_of(r, p);
  AttentionArgs args;
  args.mask = mask.set();
  args.q_start = AnyView::packed(&start, DType::i64, {1});
  if constexpr (std::is_same_v<Problem, BackwardProblem>)
    p.run = run_facts(problem, BackwardArgs{.forward = args});
  else
    p.run = run_facts(p, args);
  return problem;
}

/// What a named head costs beside the attention that is explained: mixing, nets, routers, heads left out.
struct HeadWork {
  double attention = 0, mixing = 0, own = 0, share = 1;
  HeadWork(const Request& r, const AttentionProblem& p) {
    const Variant v(r);
    const HeadCost c = cost_of(v.head, v.params, p, Variant::place_of(r));
    attention = cost_of(p).flops, mixing = c.attention_flops - attention, own = c.own_flops;
    share = v.head.head_share();
  }
  std::string words() const {
    const auto of = [&](double flops) {
      return fmt::format("{:.3g} GFLOP ({:.1f} % of attention's)", flops / 1e9,
                         attention > 0 ? 100 * flops / attention : 0);
    };
    std::string s;
    const auto add = [&](const std::string& words) { s += (s.empty() ? "" : ", ") + words; };
    if (mixing > 0) add("mixing " + of(mixing));
    if (own > 0) add("nets and gates " + of(own));
    if (share < 1) add(fmt::format("a token is worked on by {:.1f} % of the heads", 100 * share));
    return s.empty() ? "nothing beside attention" : s;
  }
};

/// The layer around these heads, as ranks would cut it.
CutLayer cut_layer(const Request& r, const AttentionProblem& p) {
  CutLayer layer{.tokens = p.batch * p.q_tokens, .dtype = p.dtype, .backward = r.backward};
  if (const Index heads = plain_heads(r); heads >= 0) {
    layer.heads =
        text("gqa:heads=", heads, ",kv_heads=", r.kv_heads < 0 ? heads : r.kv_heads, ",dim=", r.head_dim);
    layer.out_dim = heads * (r.value_dim < 0 ? r.head_dim : r.value_dim);
    layer.place = {.model_dim = r.model_dim ? r.model_dim : heads * r.head_dim};
  } else {
    layer.heads = r.heads;
    layer.out_dim = Variant(r).head.widths().out;
    layer.place = Variant::place_of(r);
  }
  return layer;
}

/// `p` is the forward's problem, also of a plan for its gradients.
template <class Plan>
int explain_plan(const Request& r, const Plan& plan, const AttentionProblem& p) {
  const MaskShare mask = share_of(r, p);
  const Roofline roofline = p.device.is_cpu() ? measure_roofline(plan.threads()) : Roofline();
  const ExplainOptions options{.shapes = r.shapes, .mermaid = r.mermaid, .roofline = &roofline};
  if (r.json) {
    auto facts = nlohmann::ordered_json::parse(explain_json(plan, options));
    if (plain_heads(r) < 0) {
      const HeadWork w(r, p);
      facts["head"] = Variant(r).head.settings();
      facts["head_work"] = {{"mixing_flops", w.mixing}, {"own_flops", w.own}, {"head_share", w.share}};
    }
    if (r.ranks.ranks > 0)
      facts["ranks"] = nlohmann::ordered_json::parse(ranks_json(r.ranks, cut_layer(r, p)));
    facts["mask"] = {{"text", mask.text}};
    if (mask.counted) facts["mask"]["open_share"] = mask.share();
    fmt::print("{}\n", facts.dump(2));
    return kDone;
  }
  const Paint paint = Paint::for_stdout();
  if (plain_heads(r) < 0) fmt::print("{}", head_lines(r));
  fmt::print("{}", painted(explain(plan, options), paint));
  if (plain_heads(r) < 0) fmt::print("{:<12}{}\n", "head work", HeadWork(r, p).words());
  fmt::print("{:<12}{}", "mask", mask.text);
  if (mask.counted) fmt::print(": {:.1f} % of the pairs are open", 100 * mask.share());
  fmt::print("\n");
  if (r.ranks.ranks > 0) fmt::print("{}", ranks_text(r.ranks, cut_layer(r, p)));
  return kDone;
}

int explain_word(const Request& r) {
  require(r.device == "cpu" || r.device == "cuda", ErrorKind::bad_argument, "explain", "--device is \"",
          r.device, "\"; give cpu or cuda");
  const Context ctx({.threads = r.threads, .kernels = r.kernels});
  if (r.backward) {
    const BackwardPlan plan(on_device(r, backward_problem_from(r)), ctx);
    return explain_plan(r, plan, plan.problem().forward);
  }
  const AttentionPlan plan(on_device(r, problem_from(r)), ctx);
  return explain_plan(r, plan, plan.problem());
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("explain", "Which kernel would run, why not the others, and what it costs");
  word->footer(
      "Example: headwise explain --batch 4 --q-tokens 2048 --heads 32 --kv-heads 8 --head-dim 128 --dtype "
      "bf16\n"
      "           --mask \"causal & window(256, 0)\" --probe rows,top8 --shapes\n"
      "         headwise explain --heads gqa:heads=16,kv_heads=4+gated:act=silu --mask causal");
  const auto r = std::make_shared<Request>();
  const CLI::Validator size = size_check();
  word->add_option("--batch", r->batch, "Sequences")->check(size)->capture_default_str();
  word->add_option("--q-tokens", r->q_tokens, "Queries of a sequence")->check(size)->capture_default_str();
  word->add_option("--kv-tokens", r->kv_tokens, "Keys of a sequence [as --q-tokens]")->check(size);
  word->add_option("--heads", r->heads, "Query heads, or a head variant such as gqa:heads=8,kv_heads=2")
      ->capture_default_str();
  word->add_option("--model-dim", r->model_dim,
                   "Width of the layer a named head stands in [heads x head-dim]")
      ->check(size);
  word->add_option("--layer", r->layer, "Layer a named head stands in, from 0")->check(size);
  word->add_option("--depth", r->depth, "Layers of the model a named head stands in")->check(size);
  word->add_option("--kv-heads", r->kv_heads, "Key and value heads [as --heads]")->check(size);
  word->add_option("--head-dim", r->head_dim, "Width of a query and key head")
      ->check(size)
      ->capture_default_str();
  word->add_option("--value-dim", r->value_dim, "Width of a value head [as --head-dim]")->check(size);
  word->add_option("--rim", r->rim, "Columns of both neighbours a head also reads (overlapped heads)")
      ->check(size);
  word->add_option("--dtype", r->dtype,
                   "f32, bf16, f16 or f64 [f32]; with --model f32, bf16 or f16 [as stored]");
  word->add_option("--mask", r->mask, "Which pairs may attend, e.g. \"causal & window(256, 0)\"")
      ->capture_default_str();
  word->add_option("--q-start", r->q_start, "Position of the first query, or \"end\"")->capture_default_str();
  for (const ScoreTerm& t : kScoreTerms) {
    const std::string option = std::string("--") + call_word(t);
    if (t.number != nullptr)
      word->add_option(option, r->numbers.*t.number, t.help);
    else if (t.planned != nullptr)
      word->add_flag(option, r->terms.*t.planned, t.help);
  }
  word->add_flag("--scale", r->scale, "A scale that is learned: with --backward, its gradient");
  word->add_flag("--lse", r->lse, "Write the log-sum-exp");
  word->add_flag("--backward", r->backward, "Explain the gradients instead");
  word->add_option("--probe", r->probe,
                   "rows, top<k>, classes<n>, columns, picked<n>, scores=<stage>; joined by commas");
  word->add_option("--kernels", r->kernels, "Allowed kernels, best first, e.g. cpu/online,ref [all]");
  word->add_option("--device", r->device, "Where the tensors lie: cpu or cuda")->capture_default_str();
  word->add_option("--threads", r->threads, "Threads [the CPUs this process may use]");
  word->add_flag("--shapes", r->shapes, "Draw the way of the dimensions");
  word->add_flag("--mermaid", r->mermaid, "The same as a mermaid flowchart");
  word->add_flag("--json", r->json, "One JSON object");
  add_rank_question(*word, r->ranks);
  const auto step = std::make_shared<ModelStep>();
  word->add_option("--model", step->model, "Explain a step of this language model instead");
  word->add_option("--context", step->context, "With --model: tokens before the one that is drawn")
      ->check(size)
      ->capture_default_str();
  word->add_option("--kv-dtype", step->kv_dtype, "With --model: f32, bf16, f16, i8 or e4m3")
      ->capture_default_str();
  word->add_option("--read-gbytes", step->read_gbytes, "With --model: GB/s of reading memory [measured]");
  word->add_option("--peak-gflops", step->peak_gflops, "With --model: GFLOP/s of arithmetic [measured]");
  word->callback([r, step, &exit_code] {
    step->batch = r->batch, step->dtype = r->dtype.empty() ? "stored" : r->dtype, step->threads = r->threads,
    step->json = r->json;
    exit_code = step->model.empty() ? explain_word(*r) : explain_model(*step);
  });
}

}  // namespace headwise::cli
