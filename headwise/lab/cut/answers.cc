#include "headwise/lab/cut/answers.h"

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

Rows answers_with(const LabModel& model, std::span<const std::string> texts, const HeadChanges& c,
                  Session& session) {
  const HeadEdit edit = edit_of(model, c.heads);
  const HeadEdit checked = [&](Index block, const AnyView& y) {
    for (std::size_t i = 0; i < c.heads.size(); ++i) {
      const Index dim = y.size[1] / model.attention(block).head_count();
      require(c.heads[i].head.layer != block || !c.heads[i].rows || c.patch_rows[i] == y.size[0] * dim,
              ErrorKind::bad_shape, kOp, "a patch holds ", c.patch_rows[i], " numbers but this run has ",
              y.size[0], " rows of ", dim, "; patch runs over texts of the same lengths");
    }
    edit(block, y);
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
