#include "headwise/lab/convert/share_scores.h"

#include <charconv>

#include "headwise/base/context.h"
#include "headwise/heads/collaborative_fit.h"
#include "headwise/lab/model/attention_cut.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "convert";

const AnyView* find(const ParamSet& params, const std::string& name) {
  for (const Param& p : params.all())
    if (p.name == name) return &p.value;
  return nullptr;
}

void check_layer(const MultiHead& a, Index layer, Index shared) {
  const auto stages = a.head().stages();
  const std::string_view kind = stages[0].table->name;
  require(stages.size() == 1 && (kind == "mha" || kind == "gqa"), ErrorKind::unsupported, kOp, "heads of ",
          a.head().name(), " do not become collaborative; mha and gqa do");
  require(
      !a.options().rope, ErrorKind::unsupported, kOp,
      "RoPE turns queries and keys of each head before they meet, so heads cannot share them; convert models "
      "with other positions");
  const Index most = a.head().spec().q.heads * a.head().spec().q.dim;
  require(shared <= most, ErrorKind::bad_argument, kOp, "layer ", layer, " has ", most,
          " query columns, fewer than the ", shared, " to be shared; give 1 to ", most);
}

/// Rows of kv heads once for each query head that reads them.
Tensor repeated_rows(const AnyView& w, const HeadLayout& k) {
  std::vector<Index> rows;
  for (Index h = 0; h < k.heads; ++h)
    for (Index i = 0; i < k.dim; ++i) rows.push_back(k.slot(h) * k.dim + i);
  return keep_entries(w, {0, rows});
}

std::string digits_of(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

}  // namespace

SharedScores share_scores(const LabModel& model, Index shared, int steps, Session& session) {
  model.heads(kOp);
  require(shared > 0, ErrorKind::bad_argument, kOp, "asked for ", shared, " shared columns; give 1 or more");
  for (Index i = 0; i < model.layers(); ++i) check_layer(model.attention(i), i, shared);
  std::vector<CollaborativeFit> fits(static_cast<std::size_t>(model.layers()));
  session.ctx.pool().parallel_for(model.layers(), [&](Index i, int) {
    const MultiHead& a = model.attention(i);
    const std::string name = attention_name(i);
    const AnyView* bias = find(model.params(), name + ".q.bias");
    Tensor keys = repeated_rows(*find(model.params(), name + ".k.weight"), a.head().spec().k);
    fits[static_cast<std::size_t>(i)] = fit_collaborative({.w_q = *find(model.params(), name + ".q.weight"),
                                                           .w_k = keys.view(),
                                                           .b_q = bias ? *bias : AnyView{},
                                                           .heads = a.head().spec().q.heads},
                                                          {.shared = shared, .steps = steps});
  });
  SharedScores made;
  std::vector<std::string> texts;
  for (Index i = 0; i < model.layers(); ++i) {
    CollaborativeFit& fit = fits[static_cast<std::size_t>(i)];
    const std::string name = attention_name(i);
    const HeadLayout v = model.attention(i).head().spec().v;
    made.energy.push_back(1 - fit.error * fit.error);
    texts.push_back(text("collaborative:heads=", fit.config.heads, ",dim=", v.dim, ",shared=", shared,
                         ",mixing=blocks,content=", fit.config.content ? "true" : "false",
                         ",scale=", digits_of(fit.config.scale)));
    // b_Q is in `content`, and b_K adds one number to all scores of a row.
    for (const char* part : {".q.bias", ".k.bias"})
      if (find(model.params(), name + part)) {
        Tensor zeros(DType::f32, {shared});
        fill_zeros(zeros.view());
        made.edited.values.emplace(name + part, std::move(zeros));
      }
    // Values of heads that shared one stand once for each from now on.
    for (const char* part : {".v.weight", ".v.bias"})
      if (const AnyView* was = find(model.params(), name + part); was && v.slots() != v.heads)
        made.edited.values.emplace(name + part, repeated_rows(*was, v));
    made.edited.values.emplace(name + ".q.weight", std::move(fit.w_q));
    made.edited.values.emplace(name + ".k.weight", std::move(fit.w_k));
    made.edited.values.emplace(name + ".mixing", std::move(fit.mixing));
    if (fit.config.content) made.edited.values.emplace(name + ".content", std::move(fit.content));
  }
  made.edited.heads = joined_heads(texts);
  return made;
}

}  // namespace headwise
