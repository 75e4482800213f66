#include "headwise/lab/cut/head_trial.h"

#include <algorithm>
#include <cmath>

#include "headwise/analysis/text_loss.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "trial";
constexpr Index kGroupTokens = 2048;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Columns of one head in the rows W_O reads.
struct Columns {
  AnyView y;
  Index first = 0, dim = 0;
  double get(Index row, Index i) const { return load_double(y.data, y.dtype, row * y.size[1] + first + i); }
  void put(Index row, Index i, double x) const {
    store_double(y.data, y.dtype, row * y.size[1] + first + i, x);
  }
};

void add_noise(const Columns& c, const Intervention& v) {
  double sum = 0, square = 0;
  const Index rows = c.y.size[0];
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < c.dim; ++i) sum += c.get(r, i), square += c.get(r, i) * c.get(r, i);
  const auto n = static_cast<double>(rows * c.dim);
  const double deviation = std::sqrt(std::max(0.0, square / n - sum / n * (sum / n)));
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < c.dim; ++i)
      c.put(r, i, c.get(r, i) + v.factor * deviation * normal_at(v.seed, r * c.dim + i));
}

void put_mean(const Columns& c) {
  for (Index i = 0; i < c.dim; ++i) {
    double sum = 0;
    for (Index r = 0; r < c.y.size[0]; ++r) sum += c.get(r, i);
    for (Index r = 0; r < c.y.size[0]; ++r) c.put(r, i, sum / static_cast<double>(c.y.size[0]));
  }
}

}  // namespace

void change_head(const AnyView& y, Index first, Index dim, const Intervention& v) {
  const Columns c{y, first, dim};
  switch (v.kind) {
    case Intervention::Kind::noised: return add_noise(c, v);
    case Intervention::Kind::mean: return put_mean(c);
    case Intervention::Kind::off:
    case Intervention::Kind::scaled:
    case Intervention::Kind::patched: break;
  }
  for (Index r = 0; r < c.y.size[0]; ++r)
    for (Index i = 0; i < c.dim; ++i)
      c.put(r, i,
            v.kind == Intervention::Kind::patched  ? static_cast<double>(v.rows[r * c.dim + i])
            : v.kind == Intervention::Kind::scaled ? v.factor * c.get(r, i)
                                                   : 0);
}

namespace {

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    ab += x * y, aa += x * x, bb += y * y;
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

HeadEdit edit_of(const LabModel& model, const std::vector<Intervention>& all) {
  for (const Intervention& v : all) {
    require(v.part == AttentionPart::own, ErrorKind::unsupported, kOp,
            "the model has one stack of self-attention; name part own");
    require(v.head.layer >= 0 && v.head.layer < model.layers(), ErrorKind::bad_argument, kOp, "layer ",
            v.head.layer, " is named; the model has 0 to ", model.layers() - 1);
    const Index heads = model.attention(v.head.layer).head_count();
    require(v.head.head >= 0 && v.head.head < heads, ErrorKind::bad_argument, kOp, "head ", v.head.head,
            " of layer ", v.head.layer, " is named; it has ", heads, " heads that can be told apart");
    require(std::isfinite(v.factor), ErrorKind::bad_argument, kOp, "a factor is no finite number");
    require(v.kind != Intervention::Kind::patched || v.rows, ErrorKind::bad_argument, kOp,
            "a patched head needs the rows of another run");
  }
  return [&model, &all](Index block, const AnyView& y) {
    for (const Intervention& v : all) {
      if (v.head.layer != block) continue;
      const Index dim = y.size[1] / model.attention(block).head_count();
      change_head(y, v.head.head * dim, dim, v);
    }
  };
}

HeadTrial::HeadTrial(const LabModel& model, const Corpus& corpus, Index most, Session& session)
    : model_(model), session_(session), heads_(model.heads(kOp)) {
  require(most > 0, ErrorKind::bad_argument, kOp, "asked for ", most, " texts; give 1 or more");
  const auto rows = static_cast<Index>(corpus.rows.size()), count = min_of(rows, most);
  for (Index i = 0; i < count; ++i) {
    const Utterance& u = corpus.rows[at(i * rows / count)];
    std::vector<Index> labels;
    if (!model.labels()) {
      plain_.push_back(u.text);
    } else if (label_numbers(model.recognizer(), u, labels)) {
      if (groups_.empty() || static_cast<Index>(groups_.back().batch.ids.size()) >= kGroupTokens)
        groups_.emplace_back();
      model.recognizer().add_to(groups_.back().batch, model.recognizer().encode(u.text));
      groups_.back().labels.push_back(std::move(labels));
    } else {
      continue;
    }
    ++texts_;
  }
  require(texts_ > 0, ErrorKind::bad_argument, kOp, corpus.name,
          ": no row has labels of this model; give texts it was made for");
  if (!model.labels()) own_ = answers();
}

double HeadTrial::loss_without(const HeadPlan& plan) { return loss(LabModel::gates_of(plan).view()); }

double HeadTrial::loss(const AnyView& gates, const HeadEdit* edit) {
  double sum = 0;
  if (!model_.labels()) {
    const auto now = answers(gates, edit);
    for (std::size_t i = 0; i < now.size(); ++i) sum += 1 - cosine(now[i], own_[i]);
    return sum / static_cast<double>(texts_);
  }
  for (const Group& g : groups_) {
    session_.memory.reset();
    Call call{.ctx = session_.ctx, .memory = session_.memory};
    call.head_gates = gates, call.edit_heads = edit;
    const AnyView logits = model_.recognizer().forward(g.batch, call, nullptr);
    for (Index u = 0; u < g.batch.count(); ++u)
      sum += text_loss(model_.recognizer(), logits, u, g.labels[at(u)], {});
  }
  return sum / static_cast<double>(texts_);
}

std::vector<std::vector<float>> HeadTrial::answers(const AnyView& gates, const HeadEdit* edit) {
  std::vector<std::vector<float>> all;
  if (!model_.labels()) {
    const Tensor rows = model_.encoder().embed(plain_, session_.ctx, session_.memory, [&](Call& call) {
      call.head_gates = gates, call.edit_heads = edit;
    });
    const Index wide = rows.view().size[1];
    for (Index i = 0; i < texts_; ++i) {
      const auto row = rows.values<float>().subspan(at(i * wide), at(wide));
      all.emplace_back(row.begin(), row.end());
    }
    return all;
  }
  for (const Group& g : groups_) {
    session_.memory.reset();
    Call call{.ctx = session_.ctx, .memory = session_.memory};
    call.head_gates = gates, call.edit_heads = edit;
    const AnyView logits = model_.recognizer().forward(g.batch, call, nullptr);
    for (Index u = 0; u < g.batch.count(); ++u)
      all.push_back(model_.recognizer().judge(logits, u).probability);
  }
  return all;
}

std::vector<std::vector<double>> HeadTrial::michel(MichelSum by, bool by_layer) {
  require(
      model_.labels(), ErrorKind::unsupported, kOp,
      "an encoder has no loss of its own whose slope could rank heads; rank by loss when off, or greedily");
  const Recognizer& r = model_.recognizer();
  const Index layers = model_.layers(), most = *std::max_element(heads_.begin(), heads_.end());
  std::vector<std::vector<double>> score(at(layers), std::vector<double>(at(most)));
  for (const Group& g : groups_) {
    session_.memory.reset();
    Call call{.ctx = session_.ctx, .memory = session_.memory};
    const auto rows = static_cast<Index>(g.batch.ids.size());
    const AnyView slopes = call.dhead_gates = call.memory.take(DType::f64, {layers, rows, most});
    fill_zeros(slopes);
    Recognizer::Saved saved;
    const AnyView logits = r.forward(g.batch, call, &saved);
    const AnyView dlogits = call.memory.take(logits.dtype, {logits.size[0], logits.size[1]});
    for (Index u = 0; u < g.batch.count(); ++u) text_loss(r, logits, u, g.labels[at(u)], dlogits);
    r.backward(dlogits, call, saved);
    const auto slope = [&](Index layer, Index row, Index head) {
      return static_cast<const double*>(slopes.data)[(layer * rows + row) * most + head];
    };
    for (Index layer = 0; layer < layers; ++layer)
      for (Index h = 0; h < most; ++h) {
        double all = 0;
        for (Index u = 0; u < g.batch.count(); ++u) {
          const auto first = g.batch.chunks[at(g.batch.first_chunk[at(u)])],
                     end = g.batch.chunks[at(g.batch.first_chunk[at(u + 1)])];
          double own = 0;
          for (Index t = first; t < end; ++t)
            own += by == MichelSum::token ? std::abs(slope(layer, t, h)) : slope(layer, t, h);
          all += by == MichelSum::batch ? own : std::abs(own);
        }
        score[at(layer)][at(h)] += std::abs(all) / static_cast<double>(texts_);
      }
  }
  for (Index layer = 0; layer < layers; ++layer) {
    std::vector<double>& row = score[at(layer)];
    row.resize(at(heads_[at(layer)]));
    double square = 0;
    for (const double x : row) square += x * x;
    if (by_layer)
      for (double& x : row) x /= std::sqrt(square) + 1e-20;
  }
  return score;
}

}  // namespace headwise
