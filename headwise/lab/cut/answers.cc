#include "headwise/lab/cut/answers.h"

#include <cmath>
#include <functional>

namespace headwise {
namespace {

constexpr std::string_view kOp = "lab";
using Rows = std::vector<std::vector<float>>;

void run(const LabModel& model, std::span<const std::string> texts, Session& session,
         const std::function<void(Call&)>& before, Rows& to) {
  if (!model.labels()) {
    const Tensor rows = model.encoder().embed(texts, session.ctx, session.memory, before);
    const Index wide = rows.view().size[1];
    for (Index i = 0; i < static_cast<Index>(texts.size()); ++i) {
      const float* row = rows.values<float>().data() + i * wide;
      to.emplace_back(row, row + wide);
    }
    return;
  }
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  before(call);
  const TextBatch batch = model.recognizer().batch(texts);
  const AnyView logits = model.recognizer().forward(batch, call, nullptr);
  for (Index i = 0; i < batch.count(); ++i) to.push_back(model.recognizer().judge(logits, i).probability);
}

/// Tokens of a text that is one forward.
Index tokens_of(const LabModel& model, const std::string& words) {
  const Index most = model.labels() ? Index{1} << 20 : model.encoder().max_tokens();
  const auto tokens =
      static_cast<Index>(model.tokenizer().encode(words, {.around = true, .most = most}).ids.size());
  require(!model.labels() || tokens <= model.recognizer().config().chunk_tokens, ErrorKind::unsupported, kOp,
          "a text has ", tokens, " tokens and is read in several chunks; knock pairs out of shorter texts");
  return tokens;
}

}  // namespace

void check_changes(const HeadChanges& c, const HeadsOf& heads_of) {
  const auto check = [&](AttentionPart part, const HeadName& h) {
    const std::string_view word = kPartNames[static_cast<std::size_t>(part)];
    const Index heads = h.layer < 0 ? 0 : heads_of(part, h.layer);
    require(heads > 0, ErrorKind::bad_argument, kOp, "layer ", h.layer, " of part ", word,
            " is named, which the model has not; name another layer or part");
    require(h.head >= 0 && h.head < heads, ErrorKind::bad_argument, kOp, "head ", h.head, " of layer ",
            h.layer, " of part ", word, " is named; it has ", heads, " heads");
  };
  for (const Intervention& v : c.heads) {
    check(v.part, v.head);
    require(std::isfinite(v.factor), ErrorKind::bad_argument, kOp, "a factor is no finite number");
    require(v.kind != Intervention::Kind::patched || v.rows, ErrorKind::bad_argument, kOp,
            "a patched head needs the rows of another run");
  }
  for (const HeadPair& p : c.pairs) check(p.part, p.head);
}

void apply_changes(const HeadChanges& c, AttentionPart part, Index layer, Index heads, const AnyView& y) {
  const Index dim = y.size[1] / heads;
  for (std::size_t i = 0; i < c.heads.size(); ++i) {
    const Intervention& v = c.heads[i];
    if (v.part != part || v.head.layer != layer) continue;
    require(!v.rows || c.patch_rows[i] == y.size[0] * dim, ErrorKind::bad_shape, kOp, "a patch holds ",
            c.patch_rows[i], " numbers but this run has ", y.size[0], " rows of ", dim,
            "; patch runs over texts of the same lengths");
    change_head(y, v.head.head * dim, dim, v);
  }
}

Rows answers_with(const LabModel& model, std::span<const std::string> texts, const HeadChanges& c,
                  Session& session) {
  edit_of(model, c.heads);  // refuses heads that are not there
  const HeadEdit checked = [&](Index block, const AnyView& y) {
    apply_changes(c, AttentionPart::own, block, model.attention(block).head_count(), y);
  };
  const auto change = [&](Call& call) { call.edit_heads = c.heads.empty() ? nullptr : &checked; };
  Rows all;
  if (c.pairs.empty()) {
    run(model, texts, session, change, all);
    return all;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Tensor bias = knocked_out(model, c.pairs, tokens_of(model, texts[i]));
    const auto both = [&](Call& call) {
      change(call);
      call.score_bias = bias.view(), call.bias_block = c.pairs[0].head.layer;
    };
    run(model, texts.subspan(i, 1), session, both, all);
  }
  return all;
}

}  // namespace headwise
