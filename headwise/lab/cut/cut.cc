#include "headwise/lab/cut/cut.h"

#include <algorithm>

#include "headwise/lab/model/attention_cut.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "cut";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

std::vector<HeadName> all_heads(const std::vector<Index>& heads) {
  std::vector<HeadName> all;
  for (std::size_t layer = 0; layer < heads.size(); ++layer)
    for (Index h = 0; h < heads[layer]; ++h) all.push_back({static_cast<Index>(layer), h});
  return all;
}

bool kept(const RankOptions& o, const HeadName& h) {
  return std::find(o.keep.begin(), o.keep.end(), h) != o.keep.end();
}

/// Heads that may go beside those the plan has taken out.
std::vector<HeadName> free_heads(const HeadPlan& plan, const RankOptions& o) {
  std::vector<HeadName> all;
  for (const HeadName& h : all_heads(plan.heads))
    if (plan.has(h) && plan.left(h.layer) > o.least_in_layer && !kept(o, h)) all.push_back(h);
  return all;
}

double loss_beside(CutTrial& trial, HeadPlan plan, const HeadName& head) {
  plan.take_out(head);
  return trial.loss_without(plan);
}

/// The smallest head there is, with weights of 0: the layer adds its output bias alone. Its settings.
std::string empty_layer(const LabModel& model, Index layer, EditedModel& edited) {
  const MultiHead& a = model.attention(layer);
  const Index dim = a.options().rope ? 2 : 1;  // RoPE turns pairs
  const std::string name = attention_name(layer);
  for (const char* part : {".q", ".k", ".v"}) {
    Tensor weight(DType::f32, {dim, a.options().model_dim}), bias(DType::f32, {dim});
    fill_zeros(weight.view()), fill_zeros(bias.view());
    edited.values.emplace(name + part + ".weight", std::move(weight));
    if (a.options().bias) edited.values.emplace(name + part + ".bias", std::move(bias));
  }
  Tensor out(DType::f32, {a.options().model_dim, dim});
  fill_zeros(out.view());
  edited.values.emplace(name + ".out.weight", std::move(out));
  for (const Param& p : model.params().all())
    if (p.name.starts_with(name + '.') && p.name != name + ".out.bias" && !edited.values.count(p.name))
      edited.dropped.insert(p.name);
  edited.pruned.clear();  // pruned_heads has no word for it
  return text("mha:heads=1,dim=", dim);
}

}  // namespace

std::vector<HeadName> rank_heads(CutTrial& trial, const RankOptions& o, Index most) {
  HeadPlan plan(trial.heads());
  std::vector<HeadName> order;
  const auto tell = [&](double share) {
    if (o.progress) o.progress(share);
  };
  const auto all_of_model = static_cast<Index>(all_heads(plan.heads).size());
  const Index can_go =
      min_of(all_of_model - 1, all_of_model - o.least_in_layer * static_cast<Index>(plan.heads.size()));
  most = min_of(most, can_go);
  if (o.rank == HeadRank::greedy) {
    for (Index n = 0; n < most; ++n) {
      const std::vector<HeadName> open = free_heads(plan, o);
      if (open.empty()) break;
      std::vector<double> loss;
      for (const HeadName& h : open) loss.push_back(loss_beside(trial, plan, h));
      order.push_back(open[at(std::min_element(loss.begin(), loss.end()) - loss.begin())]);
      plan.take_out(order.back());
      tell(static_cast<double>(n + 1) / static_cast<double>(most));
    }
    return order;
  }
  std::vector<std::pair<double, HeadName>> scored;
  const std::vector<HeadName> all = all_heads(plan.heads);
  if (o.rank == HeadRank::michel) {
    const auto score = trial.michel(o.sum, o.by_layer);
    for (const HeadName& h : all) scored.emplace_back(score[at(h.layer)][at(h.head)], h);
  } else {
    for (const HeadName& h : all) {
      scored.emplace_back(loss_beside(trial, plan, h), h);
      tell(static_cast<double>(scored.size()) / static_cast<double>(all.size()));
    }
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [score, h] : scored) {
    if (static_cast<Index>(order.size()) == most) break;
    if (plan.left(h.layer) <= o.least_in_layer || kept(o, h)) continue;
    plan.take_out(h), order.push_back(h);
  }
  return order;
}

ChosenCut choose_cut(CutTrial& trial, const std::vector<HeadName>& order, Index keep, double within) {
  ChosenCut c{.plan = HeadPlan(trial.heads())};
  const Index all = c.plan.left();
  c.loss_before = c.loss_after = trial.whole_loss();
  c.curve.push_back({all, c.loss_before});
  require(keep >= 0 && keep <= all && all - keep <= static_cast<Index>(order.size()) + (keep ? 0 : all),
          ErrorKind::bad_argument, kOp, "asked to keep ", keep, " heads; this model can keep ",
          all - static_cast<Index>(order.size()), " to ", all,
          ", one in each layer at least, and the roles that stay");
  const double limit = c.loss_before + (c.loss_before > 1e-9 ? within * c.loss_before : within);
  for (const HeadName& h : order) {
    if (keep > 0 && c.plan.left() == keep) break;
    HeadPlan next = c.plan;
    next.take_out(h);
    const double loss = trial.loss_without(next);
    c.curve.push_back({next.left(), loss});
    if (keep == 0 && loss > limit) break;
    c.plan = std::move(next), c.loss_after = loss;
    c.gone.push_back(h);
  }
  return c;
}

HeadPlan shut_heads(const LabModel& model) {
  HeadPlan plan(model.heads(kOp));
  require(model.labels() && model.recognizer().gates(), ErrorKind::bad_argument, kOp,
          "this model has no learnt gates; train one with them (headwise train --gates l0=0.01)");
  plan.cut = model.recognizer().gates()->shut();
  return plan;
}

void require_cuttable(const LabModel& model, std::string_view op) {
  HeadPlan plan(model.heads(op));
  for (std::size_t i = 0; i < plan.heads.size(); ++i)
    if (plan.heads[i] > 1) plan.take_out({static_cast<Index>(i), 0});
  cut_heads(model, plan);
}

EditedModel cut_heads(const LabModel& model, const HeadPlan& plan) {
  const std::vector<Index> heads = model.heads(kOp);
  require(plan.heads == heads, ErrorKind::bad_argument, kOp,
          "the plan is for a model of other heads; make one for this model");
  check_plan(plan, kOp);
  EditedModel edited;
  edited.pruned = plan.cut;
  std::vector<std::string> texts;
  for (Index layer = 0; layer < model.layers(); ++layer) {
    if (plan.cut[at(layer)].empty()) {
      texts.push_back(model.attention(layer).head().settings());
      continue;
    }
    if (plan.left(layer) == 0) {
      texts.push_back(empty_layer(model, layer, edited));
      continue;
    }
    const AttentionCut cut =
        cut_attention(model.attention(layer), plan.kept(layer), model.params(), attention_name(layer));
    texts.push_back(cut.heads);
    for (const Param& p : model.params().all())
      if (const auto found = cut.kept.find(p.name); found != cut.kept.end())
        edited.values.emplace(p.name, keep_entries(p.value, found->second));
  }
  edited.heads = joined_heads(texts);
  return edited;
}

}  // namespace headwise
