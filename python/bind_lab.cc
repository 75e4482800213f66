// hw.lab: surveys, surgery and interventions; python/headwise/lab.py gives them their forms.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "headwise/lab/convert.h"
#include "headwise/lab/cut.h"
#include "headwise/lab/survey/head_survey.h"
#include "python/bind.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

constexpr std::string_view kOp = "lab";

template <class E>
E named(const char* option, const std::string& word, std::span<const std::string_view> names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<E>(i);
    all += text(i ? ", " : "", names[i]);
  }
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", option, " is ", word, "; give one of ", all));
}

std::string survey(const std::string& model, const std::vector<std::string>& texts, Index most, Index tokens,
                   const std::string& conllu, const std::string& pairs, std::uint64_t seed) {
  HeadSurveyOptions o{.texts = most, .tokens = tokens, .seed = seed};
  if (!conllu.empty()) o.related = read_conllu(conllu);
  if (!pairs.empty())
    for (RelatedText& t : read_pairs(pairs)) o.related.push_back(std::move(t));
  const nb::gil_scoped_release free;
  const HeadSurvey s = survey_model(model, texts, 0, o);
  return text(survey_json(s), '\0', apart_csv(s));
}

Corpus corpus_of(const std::vector<std::string>& texts, const std::vector<std::vector<std::string>>& labels) {
  Corpus c{.name = "the given texts", .rows = {}};
  require(labels.empty() || labels.size() == texts.size(), ErrorKind::bad_argument, kOp, "got ", texts.size(),
          " texts and labels for ", labels.size(), "; give as many");
  for (std::size_t i = 0; i < texts.size(); ++i)
    c.rows.push_back({texts[i], labels.empty() ? std::vector<std::string>{} : labels[i], {}, 0});
  return c;
}

std::string cut(const std::string& model, const std::string& out, const std::string& plan,
                const std::vector<std::string>& texts, const std::vector<std::vector<std::string>>& labels,
                Index keep, const std::string& rank) {
  const nb::gil_scoped_release free;
  const LabModel whole(model);
  const std::vector<Index> heads = whole.heads(kOp);
  HeadPlan chosen(heads);
  if (!plan.empty()) {
    chosen = parse_plan(plan, "lab: plan", heads);
  } else {
    Session session;
    HeadTrial trial(whole, corpus_of(texts, labels), static_cast<Index>(texts.size()), session);
    const RankOptions o{.rank = named<HeadRank>("rank", rank, kRankNames)};
    chosen = choose_cut(trial, rank_heads(trial, o, max_of(0, chosen.left() - keep)), keep, 0).plan;
  }
  whole.save(cut_heads(whole, chosen), out, kOp);
  return plan_text(chosen);
}

using Layers = std::vector<std::tuple<double, double>>;
std::tuple<Layers, double, double, double> convert(const std::string& model, const std::string& out,
                                                   Index kv_heads, const std::string& by,
                                                   const std::vector<std::string>& texts) {
  const nb::gil_scoped_release free;
  const LabModel whole(model);
  Session session;
  const Converted c =
      share_kv(whole, kv_heads, named<MergeBy>("by", by, kMergeNames), kv_grams(whole, texts, session));
  AnswerChange change;
  whole.save(c.edited, out, kOp,
             [&](const LabModel& made) { change = change_of(whole, made, texts, session); });
  Layers layers;
  for (const LayerMerge& l : c.layers) layers.emplace_back(l.keys, l.values);
  return {layers, change.kl, change.same, change.cosine};
}

/// (kind, layer, head, factor, seed, rows)
using Change = std::tuple<std::string, Index, Index, double, std::uint64_t, std::vector<float>>;

std::vector<std::vector<float>> answers(const std::string& model, const std::vector<std::string>& texts,
                                        const std::vector<Change>& changes) {
  const nb::gil_scoped_release free;
  const LabModel whole(model);
  Session session;
  std::vector<Intervention> all;
  for (const auto& [kind, layer, head, factor, seed, rows] : changes)
    all.push_back({named<Intervention::Kind>("kind", kind, kInterventionNames),
                   {layer, head},
                   factor,
                   seed,
                   rows.empty() ? nullptr : rows.data()});
  const HeadEdit edit = edit_of(whole, all);
  const HeadEdit checked = [&](Index block, const AnyView& y) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto rows = static_cast<Index>(std::get<5>(changes[i]).size());
      const Index dim = y.size[1] / whole.attention(block).head_count();
      require(all[i].head.layer != block || !all[i].rows || rows == y.size[0] * dim, ErrorKind::bad_shape,
              kOp, "a patch holds ", rows, " numbers but this run has ", y.size[0], " rows of ", dim,
              "; patch runs over texts of the same lengths");
    }
    edit(block, y);
  };
  std::vector<std::vector<float>> out;
  if (!whole.labels()) {
    const Tensor rows = whole.encoder().embed(texts, session.ctx, session.memory, [&](Call& call) {
      call.edit_heads = all.empty() ? nullptr : &checked;
    });
    const Index wide = rows.view().size[1];
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const float* row = rows.values<float>().data() + static_cast<Index>(i) * wide;
      out.emplace_back(row, row + wide);
    }
    return out;
  }
  session.memory.reset();
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.edit_heads = all.empty() ? nullptr : &checked;
  const TextBatch batch = whole.recognizer().batch(texts);
  const AnyView logits = whole.recognizer().forward(batch, call, nullptr);
  for (Index i = 0; i < batch.count(); ++i) out.push_back(whole.recognizer().judge(logits, i).probability);
  return out;
}

/// [rows value_dim] of one head before W_O.
std::vector<float> head_rows(const std::string& model, const std::vector<std::string>& texts, Index layer,
                             Index head) {
  const nb::gil_scoped_release free;
  const LabModel whole(model);
  const std::vector<Intervention> none = {{.head = {layer, head}}};
  edit_of(whole, none);  // refuses heads that are not there
  Session session;
  std::vector<float> all;
  const HeadEdit look = [&](Index block, const AnyView& y) {
    const Index dim = y.size[1] / whole.attention(block).head_count();
    for (Index r = 0; block == layer && r < y.size[0]; ++r)
      for (Index i = 0; i < dim; ++i)
        all.push_back(static_cast<float>(load_double(y.data, y.dtype, r * y.size[1] + head * dim + i)));
  };
  if (!whole.labels()) {
    whole.encoder().embed(texts, session.ctx, session.memory, [&](Call& call) { call.edit_heads = &look; });
    return all;
  }
  Call call{.ctx = session.ctx, .memory = session.memory};
  call.edit_heads = &look;
  whole.recognizer().forward(whole.recognizer().batch(texts), call, nullptr);
  return all;
}

}  // namespace

void bind_lab(nb::module_& m) {
  m.def("lab_survey", &survey);
  m.def("lab_cut", &cut);
  m.def("lab_convert", &convert);
  m.def("lab_answers", &answers);
  m.def("lab_head_rows", &head_rows);
}

}  // namespace headwise::python
