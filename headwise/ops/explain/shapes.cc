#include "headwise/ops/explain/shapes.h"

#include <algorithm>
#include <initializer_list>

#include "headwise/spec/terms.h"

namespace headwise {
namespace {

std::string sizes(std::initializer_list<Index> all) {
  std::string s = "[";
  for (Index n : all) s += (s.size() > 1 ? " " : "") + std::to_string(n);
  return s + "]";
}

/// One tensor on the way: its name, sizes, and the names of its axes.
struct Station {
  std::string name, size, axes;
};
struct Way {
  Station x, source, q, k, v, scores, weights, out,
      merged;                                 // source: what k and v come from; x in self-attention
  std::string on_scores, on_weights, on_out;  // what happens between two stations
};

Way way_of(const AttentionProblem& p) {
  const HeadSpec& h = p.heads;
  const Index batch = p.ragged ? 1 : p.batch, heads = h.q.heads;
  const Index q = p.ragged ? p.q_total : p.q_tokens, kv = p.ragged ? p.kv_total : p.kv_tokens;
  const std::string tokens = p.ragged ? "[1 tokens " : "[batch ";
  const auto station = [&](const char* name, const HeadLayout& l, Index rows,
                           const std::string& axes) -> Station {
    if (l.row > 0)
      return {name, sizes({batch, rows, l.row}),
              "[batch tokens row], heads of " + std::to_string(l.dim) + " columns"};
    return {name, sizes({batch, rows, l.slots(), l.dim}), axes};
  };
  Way w;
  w.x = {"x", "[" + std::to_string(batch) + " " + std::to_string(q) + " model]", "[batch tokens model_dim]"};
  w.source = w.x;
  if (q != kv)
    w.source = {"source", "[" + std::to_string(batch) + " " + std::to_string(kv) + " model]",
                "[batch kv_tokens model_dim]"};
  w.q = station("q", h.q, q, tokens + (p.ragged ? "heads head_dim]" : "q_tokens heads head_dim]"));
  w.k = station("k", h.k, kv, tokens + (p.ragged ? "kv_heads head_dim]" : "kv_tokens kv_heads head_dim]"));
  w.v = station("v", h.v, kv, tokens + (p.ragged ? "kv_heads value_dim]" : "kv_tokens kv_heads value_dim]"));
  w.scores = {"scores", sizes({p.batch, heads, p.q_tokens, p.kv_tokens}),
              "[batch heads q_tokens kv_tokens], in tiles, never whole"};
  w.weights = {"weights", w.scores.size, "rows sum to 1"};
  w.out = {"out", sizes({batch, q, heads, h.v.dim}),
           tokens + (p.ragged ? "heads value_dim]" : "q_tokens heads value_dim]")};
  w.merged = {"merged", sizes({batch, q, heads * h.v.dim}), "[batch tokens heads*value_dim], a view of out"};

  const Terms& t = h.terms;
  w.on_scores = "q.k, scale";
  const auto add = [](std::string& s, bool used, const char* word) {
    if (used) s += (s.empty() ? "" : ", ") + std::string(word);
  };
  const auto add_stage = [&](std::string& s, TermStage stage) {
    for (const ScoreTerm& term : kScoreTerms)
      if (term.stage == stage) add(s, in_plan(term, h), term.shown);
  };
  add_stage(w.on_scores, TermStage::scores);
  add(w.on_scores, true, "mask");
  add_stage(w.on_weights, TermStage::weights);
  add(w.on_weights, true, h.norm == Norm::entmax ? "entmax over kv_tokens" : "normalize over kv_tokens");
  add_stage(w.on_out, TermStage::dropped);
  add(w.on_out, true, "weigh v");
  add_stage(w.on_out, TermStage::out);
  add(w.on_out, t.rows, "0 in rows that a head does not list");
  if (t.sinks) w.weights.axes = "rows and their sink sum to 1";
  return w;
}

}  // namespace

std::string shape_summary(const AttentionProblem& p) {
  const Way w = way_of(p);
  return std::string(name_of(p.dtype)) + " q " + w.q.size + " x k " + w.k.size + ", v " + w.v.size +
         " -> out " + w.out.size +
         (p.ragged ? ", ragged over " + std::to_string(p.batch) + (p.batch == 1 ? " sequence" : " sequences")
                   : "");
}

std::string shape_tree(const AttentionProblem& p) {
  const Way w = way_of(p);
  std::string s;
  const auto put = [&](const std::string& branch, const Station& at, const std::string& how) {
    std::string left = branch + at.name + " " + at.size;
    left.resize(std::max<std::size_t>(left.size() + 2, 44), ' ');
    s += left + at.axes + (how.empty() ? "" : "  <- " + how) + "\n";
  };
  const bool crossed = w.source.name != w.x.name;
  put("", w.x, "");
  if (crossed) put("", w.source, "");
  put("|- ", w.q, crossed ? "project x" : "project");
  put("|- ", w.k, crossed ? "project source" : "project");
  put("|- ", w.v, crossed ? "project source" : "project");
  put("`- ", w.scores, w.on_scores);
  put("   `- ", w.weights, w.on_weights);
  put("      `- ", w.out, w.on_out);
  put("         `- ", w.merged, "merge");
  return s;
}

std::string shape_mermaid(const AttentionProblem& p) {
  const Way w = way_of(p);
  std::string s = "flowchart TD\n";
  const bool crossed = w.source.name != w.x.name;
  for (const Station* at : {&w.x, &w.source, &w.q, &w.k, &w.v, &w.scores, &w.weights, &w.out, &w.merged})
    if (at != &w.source || crossed)
      s += "  " + at->name + "[\"" + at->name + " " + at->size + "<br/>" + at->axes + "\"]\n";
  const auto arrow = [&](const char* from, const char* to, const std::string& how) {
    s += std::string("  ") + from + " -->" + (how.empty() ? " " : "|\"" + how + "\"| ") + to + "\n";
  };
  arrow("x", "q", "project");
  arrow(w.source.name.c_str(), "k", "project");
  arrow(w.source.name.c_str(), "v", "project");
  arrow("q", "scores", w.on_scores);
  arrow("k", "scores", "");
  arrow("scores", "weights", w.on_weights);
  arrow("weights", "out", w.on_out);
  arrow("v", "out", "");
  arrow("out", "merged", "merge");
  return s;
}

}  // namespace headwise
