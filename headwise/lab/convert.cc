#include "headwise/lab/convert.h"

#include <algorithm>
#include <cmath>

#include "headwise/lab/attention_cut.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "convert";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

const AnyView* find(const ParamSet& params, const std::string& name) {
  for (const Param& p : params.all())
    if (p.name == name) return &p.value;
  return nullptr;
}

double get(const AnyView& v, Index i) { return load_double(v.data, v.dtype, i); }

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

using Groups = std::vector<std::vector<Index>>;

Groups neighbours(Index units, Index groups) {
  Groups all(at(groups));
  for (Index u = 0; u < units; ++u) all[at(u * groups / units)].push_back(u);
  return all;
}

struct Merge {
  Groups groups;
  std::vector<Alignment> keys, values;  // by group
  LayerMerge figures;
};

Merge merge_of(const HeadGram& k, const HeadGram& v, Groups groups,
               const std::function<Alignment(const HeadGram&, const std::vector<Index>&, bool)>& how) {
  Merge m;
  double keys = 0, values = 0, all_keys = 0, all_values = 0;
  for (const auto& group : groups) {
    m.keys.push_back(how(k, group, true)), m.values.push_back(how(v, group, false));
    keys += m.keys.back().error, values += m.values.back().error;
    for (const Index u : group) all_keys += k.square(u), all_values += v.square(u);
  }
  m.figures = {all_keys > 0 ? keys / all_keys : 0, all_values > 0 ? values / all_values : 0, groups};
  m.groups = std::move(groups);
  return m;
}

Merge merged(const MultiHead& a, const HeadGram& k, const HeadGram& v, Index kv_heads, MergeBy by) {
  const Groups plain = neighbours(k.heads, kv_heads);
  if (by != MergeBy::aligned)
    return merge_of(k, v, plain, [&](const HeadGram& g, const std::vector<Index>& group, bool) {
      return by == MergeBy::mean ? mean_of(g, group) : first_of(g, group);
    });
  const TurnRule of_keys = key_rule(a), of_values = value_rule(a.head());
  const auto how = [&](const HeadGram& g, const std::vector<Index>& group, bool keys) {
    return aligned(g, group, keys ? of_keys : of_values);
  };
  SmallMatrix distance(k.heads, k.heads);
  double all_keys = 0, all_values = 0;
  for (Index u = 0; u < k.heads; ++u) all_keys += k.square(u), all_values += v.square(u);
  for (Index x = 0; x < k.heads; ++x)
    for (Index y = x + 1; y < k.heads; ++y)
      distance.at(x, y) = distance.at(y, x) =
          distance_aligned(k, x, y, of_keys) / std::max(all_keys, 1e-300) +
          distance_aligned(v, x, y, of_values) / std::max(all_values, 1e-300);
  Merge near = merge_of(k, v, plain, how), alike = merge_of(k, v, grouped_by(distance, kv_heads), how);
  return alike.figures.total() < near.figures.total() ? alike : near;
}

/// Rows [dim columns] of head h turned and scaled: factor * turn^T rows, added to rows `to` of `out`.
struct Rows {
  const AnyView& from;
  Index h;
  const SmallMatrix& turn;
  double factor;
};
void add_turned(const Rows& r, Tensor& out, Index to) {
  const Index dim = r.turn.rows, columns = r.from.rank == 1 ? 1 : r.from.size[1];
  const AnyView& o = out.view();
  for (Index i = 0; i < dim; ++i)
    for (Index c = 0; c < columns; ++c) {
      double sum = get(o, (to * dim + i) * columns + c);
      for (Index j = 0; j < dim; ++j)
        sum += r.factor * r.turn.at(j, i) * get(r.from, (r.h * dim + j) * columns + c);
      store_double(o.data, o.dtype, (to * dim + i) * columns + c, sum);
    }
}

Tensor like(const AnyView& v, Index rows) {
  return v.rank == 1 ? Tensor(DType::f64, {rows}) : Tensor(DType::f64, {rows, v.size[1]});
}

/// New q, k, v and out of one layer.
class LayerEdit {
 public:
  LayerEdit(const LabModel& model, Index layer, const Merge& merge, EditedModel& edited)
      : model_(model), name_(attention_name(layer)), merge_(merge), edited_(edited) {
    const HeadSpec spec = model.attention(layer).head().spec();
    dim_ = spec.k.dim, group_ = spec.q.heads / spec.k.slots();
  }
  /// Query heads of the model in their new order.
  std::vector<Index> order() const {
    std::vector<Index> all;
    for (const auto& units : merge_.groups)
      for (const Index u : units)
        for (Index i = 0; i < group_; ++i) all.push_back(u * group_ + i);
    return all;
  }
  void run() {
    for (const char* kind : {".weight", ".bias"}) {
      queries(kind);
      shared(".k", kind, merge_.keys), shared(".v", kind, merge_.values);
    }
    out();
  }

 private:
  void queries(const char* kind) {
    const AnyView* q = find(model_.params(), name_ + ".q" + kind);
    if (!q) return;
    Tensor to = like(*q, q->size[0]);
    Index slot = 0;
    for (std::size_t g = 0; g < merge_.groups.size(); ++g)
      for (std::size_t u = 0; u < merge_.groups[g].size(); ++u)
        for (Index i = 0; i < group_; ++i)
          add_turned({*q, merge_.groups[g][u] * group_ + i, merge_.keys[g].turn[u], merge_.keys[g].size[u]},
                     to, slot++);
    edited_.values.emplace(name_ + ".q" + kind, std::move(to));
  }
  void shared(const char* part, const char* kind, const std::vector<Alignment>& all) {
    const AnyView* w = find(model_.params(), name_ + part + kind);
    if (!w) return;
    Tensor to = like(*w, static_cast<Index>(all.size()) * dim_);
    for (std::size_t g = 0; g < all.size(); ++g)
      for (std::size_t u = 0; u < merge_.groups[g].size(); ++u)
        if (all[g].share[u] != 0)
          add_turned({*w, merge_.groups[g][u], all[g].turn[u], all[g].share[u]}, to, static_cast<Index>(g));
    edited_.values.emplace(name_ + part + kind, std::move(to));
  }
  /// W_O [model_dim heads*dim]: column block of a head times its turn and size.
  void out() {
    const AnyView* w = find(model_.params(), name_ + ".out.weight");
    Tensor to(DType::f64, {w->size[0], w->size[1]});
    Index slot = 0;
    for (std::size_t g = 0; g < merge_.groups.size(); ++g)
      for (std::size_t u = 0; u < merge_.groups[g].size(); ++u)
        for (Index i = 0; i < group_; ++i, ++slot) {
          const Index from = (merge_.groups[g][u] * group_ + i) * dim_;
          const SmallMatrix& turn = merge_.values[g].turn[u];
          for (Index r = 0; r < w->size[0]; ++r)
            for (Index c = 0; c < dim_; ++c) {
              double sum = 0;
              for (Index j = 0; j < dim_; ++j) sum += get(*w, r * w->size[1] + from + j) * turn.at(j, c);
              to.values<double>()[at(r * w->size[1] + slot * dim_ + c)] = merge_.values[g].size[u] * sum;
            }
        }
    edited_.values.emplace(name_ + ".out.weight", std::move(to));
  }

  const LabModel& model_;
  std::string name_;
  const Merge& merge_;
  EditedModel& edited_;
  Index dim_ = 0, group_ = 1;
};

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
    const Merge m = merged(a, grams.keys[at(i)], grams.values[at(i)], kv_heads, by);
    LayerEdit edit(model, i, m, c.edited);
    const AttentionCut moved = cut_attention(a, edit.order(), model.params(), attention_name(i));
    for (const Param& p : model.params().all()) {
      const bool ours =
          p.name.starts_with(attention_name(i) + ".q.") || p.name.starts_with(attention_name(i) + ".k.") ||
          p.name.starts_with(attention_name(i) + ".v.") || p.name == attention_name(i) + ".out.weight";
      if (const auto found = moved.kept.find(p.name); !ours && found != moved.kept.end())
        c.edited.values.emplace(p.name, keep_entries(p.value, found->second));
    }
    edit.run();
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
