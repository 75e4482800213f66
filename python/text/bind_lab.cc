// hw.lab: surveys, surgery and interventions; python/headwise/lab.py gives them their forms.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "headwise/base/context.h"
#include "headwise/lab/convert/convert.h"
#include "headwise/lab/convert/share_scores.h"
#include "headwise/lab/cut/answers.h"
#include "headwise/lab/cut/cut.h"
#include "headwise/lab/decoder/decoder_convert.h"
#include "headwise/lab/decoder/decoder_cut.h"
#include "headwise/lab/decoder/token_answers.h"
#include "headwise/lab/figures/array_subject.h"
#include "headwise/lab/survey/head_survey.h"
#include "python/arrays/bind.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

constexpr std::string_view kOp = "lab";
constexpr Index kMostPathTokens = 2048;  // of a rollout, a flow or a decoder's text

template <class E>
E named(const char* option, const std::string& word, std::span<const std::string_view> names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<E>(i);
    all += text(i ? ", " : "", names[i]);
  }
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", option, " is ", word, "; give one of ", all));
}

/// numbers: most, tokens, seed, rows_only, and the part of a translator, -1 for its encoder.
std::string survey(const std::string& model, const std::vector<std::string>& texts,
                   const std::vector<Index>& numbers, const std::string& conllu, const std::string& pairs) {
  HeadSurveyOptions o{.texts = numbers.at(0),
                      .tokens = numbers.at(1),
                      .rows_only = numbers.at(3) != 0,
                      .seed = static_cast<std::uint64_t>(numbers.at(2))};
  if (numbers.at(4) >= 0) o.part = static_cast<AttentionPart>(numbers.at(4));
  if (!conllu.empty()) o.related = read_conllu(conllu);
  if (!pairs.empty())
    for (RelatedText& t : read_pairs(pairs)) o.related.push_back(std::move(t));
  const nb::gil_scoped_release free;
  const HeadSurvey s = survey_model(model, texts, 0, o);
  return text(survey_json(s), '\0', apart_csv(s));
}

/// The floats of one text, layer by layer, each layer `each` numbers a head.
std::vector<const float*> layers_of(const nb::bytes& floats, const std::vector<Index>& heads, Index each,
                                    const std::string& what) {
  std::vector<const float*> all;
  Index count = 0;
  for (const Index h : heads) all.push_back(nullptr), count += h * each;
  require(static_cast<Index>(floats.size()) == count * Index{sizeof(float)}, ErrorKind::bad_shape, kOp, what,
          " hold ", floats.size() / sizeof(float), " numbers but these heads and tokens need ", count);
  const auto* from = static_cast<const float*>(floats.data());
  for (std::size_t i = 0; i < heads.size(); from += heads[i] * each, ++i) all[i] = from;
  return all;
}

/// kinds: of every token, 1 for [CLS], 2 for [SEP], 4 for punctuation. numbers: seed, clusters and causal.
std::string survey_arrays(const std::vector<nb::bytes>& weights, const std::vector<nb::bytes>& norms,
                          const std::vector<Index>& heads, const std::vector<std::vector<TokenId>>& ids,
                          const std::vector<std::vector<int>>& kinds, const std::vector<Index>& numbers) {
  std::vector<TextArrays> texts;
  Index most = 8;
  for (std::size_t t = 0; t < weights.size(); ++t) {
    TextArrays one;
    const auto n = static_cast<Index>(ids.at(t).size());
    for (Index i = 0; i < n; ++i) {
      const int kind = kinds.at(t).at(static_cast<std::size_t>(i));
      const bool special = (kind & 3) != 0;
      one.tokens.push_back({.id = ids[t][static_cast<std::size_t>(i)],
                            .begin = i,
                            .end = special ? i : i + 1,
                            .cls = (kind & 1) != 0,
                            .sep = (kind & 2) != 0,
                            .punctuation = (kind & 4) != 0});
    }
    one.weights = layers_of(weights[t], heads, n * n, text("the weights of text ", t));
    if (!norms.empty()) one.value_norms = layers_of(norms.at(t), heads, n, text("the norms of text ", t));
    texts.push_back(std::move(one)), most = max_of(most, n);
  }
  const auto seed = static_cast<std::uint64_t>(numbers.at(0));
  const nb::gil_scoped_release free;
  ArraySubject own(texts, heads, numbers.at(2) != 0), shuffled(texts, heads, numbers.at(2) != 0, true, seed);
  const HeadSurveyOptions o{.texts = static_cast<Index>(texts.size()),
                            .tokens = most,
                            .repeats = 0,
                            .clusters = numbers.at(1),
                            .collapse = 0,
                            .seed = seed};
  const HeadSurvey s = survey_subjects(own, &shuffled, own.names(), o);
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

std::string cut_decoder(const std::string& model, const std::string& out, const std::string& plan,
                        const std::vector<std::string>& texts, Index keep, const std::string& rank) {
  const LabDecoder whole(model, kOp);
  HeadPlan chosen(whole.heads());
  if (!plan.empty()) {
    chosen = parse_plan(plan, "lab: plan", whole.heads());
  } else {
    Context ctx;
    DecoderTrial trial(whole, texts, static_cast<Index>(texts.size()), ctx);
    const RankOptions o{.rank = named<HeadRank>("rank", rank, kRankNames)};
    chosen = choose_cut(trial, rank_heads(trial, o, max_of(0, chosen.left() - keep)), keep, 0).plan;
  }
  whole.save(cut_heads(whole, chosen), out, kOp);
  return plan_text(chosen);
}

std::string cut(const std::string& model, const std::string& out, const std::string& plan,
                const std::vector<std::string>& texts, const std::vector<std::vector<std::string>>& labels,
                Index keep, const std::string& rank) {
  const nb::gil_scoped_release free;
  if (holds_decoder(model)) return cut_decoder(model, out, plan, texts, keep, rank);
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
std::tuple<Layers, double, double, double> convert_decoder(const std::string& model, const std::string& out,
                                                           Index kv_heads, MergeBy by,
                                                           const std::vector<std::string>& words) {
  const LabDecoder whole(model, kOp);
  Context ctx;
  const std::vector<LabDecoder::Text> texts = whole.read(words, kMostPathTokens);
  const ConvertedDecoder c = share_kv(whole, kv_heads, by, kv_grams(whole, texts, ctx));
  double kl = 0;
  whole.save(c.edited, out, kOp, [&](const std::string& made) {
    kl = next_token_kl(whole.without(HeadPlan(whole.heads()), ctx),
                       LabDecoder(made, kOp).without(HeadPlan(whole.heads()), ctx), texts, ctx);
  });
  Layers layers;
  for (const LayerMerge& l : c.layers) layers.emplace_back(l.keys, l.values);
  return {layers, kl, 0, 0};
}

std::tuple<Layers, double, double, double> convert(const std::string& model, const std::string& out,
                                                   Index kv_heads, const std::string& by,
                                                   const std::vector<std::string>& texts) {
  const nb::gil_scoped_release free;
  const auto way = named<MergeBy>("by", by, kMergeNames);
  if (holds_decoder(model)) return convert_decoder(model, out, kv_heads, way, texts);
  const LabModel whole(model);
  Session session;
  const Converted c = share_kv(whole, kv_heads, way, kv_grams(whole, texts, session));
  AnswerChange change;
  whole.save(c.edited, out, kOp,
             [&](const LabModel& made) { change = change_of(whole, made, texts, session); });
  Layers layers;
  for (const LayerMerge& l : c.layers) layers.emplace_back(l.keys, l.values);
  return {layers, change.kl, change.same, change.cosine};
}

std::tuple<std::vector<double>, double, double, double> share(const std::string& model,
                                                              const std::string& out, Index shared, int steps,
                                                              const std::vector<std::string>& texts) {
  const nb::gil_scoped_release free;
  require(!holds_decoder(model), ErrorKind::unsupported, kOp, model,
          ": files of decoders have no place for a shared space of queries and keys; give kv_heads");
  const LabModel whole(model);
  Session session;
  const SharedScores c = share_scores(whole, shared, steps, session);
  AnswerChange change;
  whole.save(c.edited, out, kOp,
             [&](const LabModel& made) { change = change_of(whole, made, texts, session); });
  return {c.energy, change.kl, change.same, change.cosine};
}

/// (kind, layer, head, part, factor, seed, rows)
using Change = std::tuple<std::string, Index, Index, std::string, double, std::uint64_t, std::vector<float>>;
/// (layer, head, query, key, part)
using Pair = std::tuple<Index, Index, Index, Index, std::string>;
using States = std::vector<std::vector<float>>;

/// Texts with what goes beside them; `held` is where the states lie.
TokenTexts token_texts(const std::vector<std::string>& texts, const std::vector<std::string>& targets,
                       const States& states, std::vector<float>& held) {
  TokenTexts all{texts, targets, {}};
  for (const auto& row : states) {
    require(row.size() == states[0].size(), ErrorKind::bad_shape, kOp, "states have rows of ",
            states[0].size(), " and ", row.size(), " columns; give [tokens model_dim]");
    held.insert(held.end(), row.begin(), row.end());
  }
  if (!states.empty())
    all.states = ConstView::packed(held.data(), DType::f32,
                                   {std::ssize(states), static_cast<Index>(states[0].size())});
  return all;
}

std::vector<std::vector<float>> answers(const std::string& model, const std::vector<std::string>& texts,
                                        const std::vector<Change>& changes, const std::vector<Pair>& pairs,
                                        const std::vector<std::string>& targets, const States& states) {
  const nb::gil_scoped_release free;
  HeadChanges all;
  for (const auto& [kind, layer, head, part, factor, seed, rows] : changes) {
    all.heads.push_back({named<Intervention::Kind>("kind", kind, kInterventionNames),
                         {layer, head},
                         named<AttentionPart>("part", part, kPartNames),
                         factor,
                         seed,
                         rows.empty() ? nullptr : rows.data()});
    all.patch_rows.push_back(static_cast<Index>(rows.size()));
  }
  for (const auto& [layer, head, query, key, part] : pairs)
    all.pairs.push_back({{layer, head}, named<AttentionPart>("part", part, kPartNames), query, key});
  std::vector<float> held;
  if (holds_token_model(model))
    return open_token_model(model)->answers(token_texts(texts, targets, states, held), all);
  require(targets.empty() && states.empty(), ErrorKind::bad_argument, kOp,
          "targets are a translator's and states a decoder's; leave them out");
  const LabModel whole(model);
  Session session;
  return answers_with(whole, texts, all, session);
}

/// Half of the mean map, half of the identity, of every layer.
std::vector<SmallMatrix> residual_maps(const std::string& model, const std::string& words) {
  const auto subject = open_subject(model, 0);
  const SurveyTokens read = subject->read(words, kMostPathTokens);
  require(!read.shortened, ErrorKind::unsupported, kOp, "the text is longer than the model or ",
          kMostPathTokens, " tokens; give a shorter one");
  require(!read.empty(), ErrorKind::bad_argument, kOp, "the text has no token; give one with words");
  std::vector<SmallMatrix> layers;
  subject->run(std::span(&read, 1), false, [&](Index, Index, std::span<const LayerMaps> all) {
    layers.push_back(with_residual(all[0].weights, all[0].heads, all[0].tokens));
  });
  return layers;
}
std::vector<std::vector<double>> rollout(const std::string& model, const std::string& words) {
  const nb::gil_scoped_release free;
  const SmallMatrix all = rolled_out(residual_maps(model, words));
  std::vector<std::vector<double>> rows;
  for (Index i = 0; i < all.rows; ++i) {
    rows.emplace_back();
    for (Index j = 0; j < all.columns; ++j) rows.back().push_back(all.at(i, j));
  }
  return rows;
}
std::vector<double> flow(const std::string& model, const std::string& words, Index token) {
  const nb::gil_scoped_release free;
  return flow_from(residual_maps(model, words), token);
}

/// [rows value_dim] of one head before W_O.
std::vector<float> token_head_rows(const std::string& model, const TokenTexts& texts, AttentionPart part,
                                   HeadName head) {
  const auto whole = open_token_model(model);
  HeadChanges none;  // scaled by 1: checked as a change is
  none.heads.push_back({.kind = Intervention::Kind::scaled, .head = head, .part = part, .factor = 1});
  none.patch_rows.push_back(0);
  std::vector<float> all;
  const TokenModel::Look look = [&](AttentionPart of, Index layer, const AnyView& y) {
    const Index dim = y.size[1] / whole->heads(of, layer);
    for (Index r = 0; of == part && layer == head.layer && r < y.size[0]; ++r)
      for (Index i = 0; i < dim; ++i)
        all.push_back(static_cast<float>(load_double(y.data, y.dtype, r * y.size[1] + head.head * dim + i)));
  };
  whole->answers(texts, none, &look);
  return all;
}
std::vector<float> head_rows(const std::string& model, const std::vector<std::string>& texts, Index layer,
                             Index head, const std::string& part, const std::vector<std::string>& targets,
                             const States& states) {
  const nb::gil_scoped_release free;
  std::vector<float> held;
  const auto of = named<AttentionPart>("part", part, kPartNames);
  if (holds_token_model(model))
    return token_head_rows(model, token_texts(texts, targets, states, held), of, {layer, head});
  const LabModel whole(model);
  const std::vector<Intervention> none = {{.head = {layer, head}, .part = of}};
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
  m.def("lab_survey_arrays", &survey_arrays);
  m.def("lab_cut", &cut);
  m.def("lab_convert", &convert);
  m.def("lab_share", &share);
  m.def("lab_answers", &answers);
  m.def("lab_head_rows", &head_rows);
  m.def("lab_rollout", &rollout);
  m.def("lab_flow", &flow);
}

}  // namespace headwise::python
