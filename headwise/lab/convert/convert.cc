#include "headwise/lab/convert/convert.h"

#include <algorithm>
#include <cmath>

#include "headwise/lab/model/attention_cut.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "convert";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

const AnyView* find(const ParamSet& params, const std::string& name) {
  for (const Param& p : params.all())
    if (p.name == name) return &p.value;
  return nullptr;
}

/// Heads of a layer that can share keys: mha or gqa, with gates from the input or entmax over them.
void check_kind(const AnyHead& head) {
  const auto stages = head.stages();
  const std::string_view first = stages[0].table->name;
  bool fine = first == "mha" || first == "gqa";
  for (const AnyHead::Stage& s : stages.subspan(1))
    fine &= s.table->name == "entmax" ||
            (s.table->name == "gated" &&
             s.table->settings(s.head.get()).find("source=input") != std::string::npos);
  require(fine, ErrorKind::unsupported, kOp, "heads of ", head.name(),
          " are not converted; mha and gqa are, with gated:source=input or entmax over them");
}

/// Gates of single columns stand between values and W_O, so no turn can pass them.
TurnRule value_rule(const AnyHead& head) {
  for (const AnyHead::Stage& s : head.stages())
    if (s.table->name == "gated" &&
        s.table->settings(s.head.get()).find("grain=element") != std::string::npos)
      return {.turns = Turns::none};
  return {};
}

TurnRule key_rule(const MultiHead& a) {
  if (a.options().rope) return {.turns = Turns::pairs, .rope = *a.options().rope};
  return {};
}

/// New q, k, v and out of one layer.
void edit_layer(const LabModel& model, Index layer, const HeadMerge& merge, EditedModel& edited) {
  const std::string name = attention_name(layer);
  const HeadSpec spec = model.attention(layer).head().spec();
  const Index group = spec.q.heads / spec.k.slots();
  const auto put = [&](const std::string& part, const auto& made) {
    if (const AnyView* was = find(model.params(), name + part))
      edited.values.emplace(name + part, made(*was));
  };
  for (const std::string kind : {".weight", ".bias"}) {
    put(".q" + kind, [&](const ConstView& w) { return merged_queries(w, merge, group); });
    put(".k" + kind, [&](const ConstView& w) { return merged_shared(w, merge, true); });
    put(".v" + kind, [&](const ConstView& w) { return merged_shared(w, merge, false); });
  }
  put(".out.weight", [&](const ConstView& w) { return merged_out(w, merge, group); });
}

std::string shared_text(std::string heads, Index kv_heads) {
  if (heads.starts_with("mha:")) {
    heads.replace(0, 4, "gqa:");
    heads.insert(heads.find(",dim="), text(",kv_heads=", kv_heads));
  }
  return with_setting(heads, "kv_heads", kv_heads);
}

}  // namespace

KvGrams kv_grams(const LabModel& model, std::span<const std::string> texts, Session& session) {
  KvGrams g;
  for (Index i = 0; i < model.layers(); ++i) {
    check_kind(model.attention(i).head());
    const HeadSpec spec = model.attention(i).head().spec();
    g.keys.emplace_back(spec.k.slots(), spec.k.dim), g.values.emplace_back(spec.v.slots(), spec.v.dim);
  }
  model.each_text(texts, session, true, [&](const SeenText& seen) {
    for (const Tap& t : seen.taps)
      for (Index i = 0; i < t.kv_tokens; ++i) {
        HeadGram &k = g.keys[at(t.block)], &v = g.values[at(t.block)];
        k.add_row(t.k.data() + i * k.heads * k.dim), v.add_row(t.v.data() + i * v.heads * v.dim);
      }
  });
  return g;
}

Converted share_kv(const LabModel& model, Index kv_heads, MergeBy by, const KvGrams& grams) {
  model.heads(kOp);
  Converted c;
  std::vector<std::string> texts;
  for (Index i = 0; i < model.layers(); ++i) {
    const MultiHead& a = model.attention(i);
    check_kind(a.head());
    require(
        !a.options().alibi, ErrorKind::unsupported, kOp,
        "the slopes of alibi go by the number of each head, so heads cannot change places; convert models "
        "with other positions");
    const Index units = a.head().spec().k.slots();
    require(kv_heads > 0 && units % kv_heads == 0, ErrorKind::bad_argument, kOp, "layer ", i, " has ", units,
            " key/value heads, which ", kv_heads, " cannot share evenly; give a divisor of ", units);
    if (units == kv_heads) {
      texts.push_back(shared_text(a.head().settings(), kv_heads));
      c.layers.push_back({0, 0, neighbours(units, units)});
      continue;
    }
    const HeadMerge m = merge_heads(grams.keys[at(i)], grams.values[at(i)], kv_heads,
                                    {.by = by, .keys = key_rule(a), .values = value_rule(a.head())});
    const Index group = a.head().spec().q.heads / units;
    const AttentionCut moved = cut_attention(a, merged_order(m, group), model.params(), attention_name(i));
    for (const Param& p : model.params().all()) {
      const bool ours =
          p.name.starts_with(attention_name(i) + ".q.") || p.name.starts_with(attention_name(i) + ".k.") ||
          p.name.starts_with(attention_name(i) + ".v.") || p.name == attention_name(i) + ".out.weight";
      if (const auto found = moved.kept.find(p.name); !ours && found != moved.kept.end())
        c.edited.values.emplace(p.name, keep_entries(p.value, found->second));
    }
    edit_layer(model, i, m, c.edited);
    texts.push_back(shared_text(a.head().settings(), kv_heads));
    c.layers.push_back(m.figures);
  }
  c.edited.heads = joined_heads(texts);
  return c;
}

AnswerChange change_of(const LabModel& before, const LabModel& after, std::span<const std::string> texts,
                       Session& session) {
  AnswerChange c{.texts = static_cast<Index>(texts.size())};
  const double n = std::max(1.0, static_cast<double>(texts.size()));
  if (!before.labels()) {
    const Tensor a = before.encoder().embed(texts, session.ctx, session.memory),
                 b = after.encoder().embed(texts, session.ctx, session.memory);
    const Index wide = a.view().size[1];
    for (Index i = 0; i < c.texts; ++i) {
      double ab = 0, aa = 0, bb = 0;
      for (Index j = 0; j < wide; ++j) {
        const double x = a.values<float>()[at(i * wide + j)], y = b.values<float>()[at(i * wide + j)];
        ab += x * y, aa += x * x, bb += y * y;
      }
      c.cosine += ab / std::sqrt(std::max(aa * bb, 1e-300)) / n;
    }
    return c;
  }
  const auto a = before.recognizer().predict(texts, session), b = after.recognizer().predict(texts, session);
  const bool several = before.recognizer().config().multi_label;
  const auto term = [](double p, double q) { return p > 0 ? p * std::log(p / std::max(q, 1e-300)) : 0; };
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t l = 0; l < a[i].probability.size(); ++l) {
      const double p = a[i].probability[l], q = b[i].probability[l];
      c.kl += (term(p, q) + (several ? term(1 - p, 1 - q) : 0)) / n;
    }
    c.same += (a[i].labels == b[i].labels) / n;
  }
  return c;
}

}  // namespace headwise
