#include "headwise/analysis/report/report.h"

#include <algorithm>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/report_answers.h"
#include "headwise/analysis/report/report_words.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/version.h"

namespace headwise {
namespace {

std::string tile(const std::string& number, const std::string& words) {
  return text("<div class=tile><b>", number, "</b><span>", words, "</span></div>");
}

/// How many heads of each mistake fit the page.
Index heads_that_fit(const Recognizer& r, const Corpus& corpus, const Answers& a, const ReportOptions& o) {
  Index one = 0;  // bytes of one head of every mistake
  const Index count = min_of(o.mistakes, static_cast<Index>(a.wrong.size()));
  for (Index i = 0; i < count; ++i) {
    const auto u = static_cast<std::size_t>(a.wrong[static_cast<std::size_t>(i)]);
    const Index n = min_of(o.tokens, static_cast<Index>(r.encode(corpus.rows[u].text).ids.size()));
    one += ceil_div(weight_bytes_of(n), 3) * 4;
  }
  const Index all = max_of(1, r.config().encoder.depth * drawn_heads(r));
  return one == 0 ? all : std::clamp<Index>(o.weight_bytes / one, 1, all);
}

std::string about(const Recognizer& r, const Report& report, const RoleBook& book, const ReportOptions& o,
                  const ReportWords& say) {
  std::string roles;
  for (const Role& role : book.roles())
    roles += text(roles.empty() ? "" : "; ", "<b>", html(role.name), "</b> ", html(role.row));
  return text(
      "<p>",
      say("<b>Sentences on this page:</b> {0} utterances of {1} that were answered wrongly and {2} of the "
          "gallery, no others.",
          grouped(report.shown), html(shown(o.data)), o.gallery.size()),
      " ",
      o.redact ? say("Digits and what looks like a name are masked by dots; other words are as they were "
                     "written, so "
                     "look before you pass it on.")
               : say("They are as they were written, numbers and names included; <code>--redact</code> masks "
                     "both."),
      "</p><p>",
      say("<b>Importance</b> of a head is the mean over utterances of |dL/dgate|: how fast the loss L of the "
          "true labels would move if its output were scaled. <b>Loss when off</b> is how far L rises when "
          "the "
          "head is switched off. <b>Entropy</b> of its weights in nats, <b>confidence</b> its largest "
          "weight, "
          "<b>distance</b> how far away it looks, each a mean over all words. They were measured on {0} "
          "utterances.",
          grouped(report.survey.utterances)),
      "</p><p>",
      say("<b>A role</b> is claimed when the head's weight on the role's pairs of words is at least {0} "
          "times "
          "that of a head that looks everywhere alike, over {1} pairs or more, and switching the head off "
          "hurts "
          "utterances that have such a pair more than the others, and more than chance would in 5 of 100 "
          "such "
          "pages. Roles of form (previous, next, separator, broad) are in every utterance and need their "
          "weight "
          "alone. Rows of the roles: {2}.",
          kLeastRatio, kLeastPairs, roles),
      "</p><p>",
      say("Colours of words in a mistake: blue speaks for the label that was given, orange against it (the "
          "log-odds it loses when the word is hidden). Written by headwise {0}; the model is "
          "<code>{1}</code>, "
          "{2} layers of width {3}.",
          kVersion, html(shown(r.config().encoder.heads)), r.config().encoder.depth,
          r.config().encoder.model_dim),
      "</p>");
}

std::string heads_lead(const Survey& s, const ReportWords& say) {
  if (s.heads == 0)
    return say(
        "Heads of this kind give the layer's output together, so none can be switched off or judged by "
        "itself; where each looks is drawn below.");
  const std::string known =
      s.mixed ? " " + say("These heads mix their weights: what is drawn and judged is the size of what "
                          "multiplies the values after mixing, as shares of each row.")
              : "";
  const auto with =
      std::count_if(s.all.begin(), s.all.end(), [](const SurveyedHead& h) { return h.role >= 0; });
  return say("Layers from top to bottom, heads from left to right, each with its role where it has one: {0} "
             "of "
             "{1} do. A role needs two proofs, both shown: where the head looks, and what is lost without "
             "it.",
             with, s.all.size()) +
         known;
}

/// What stands above the sections.
std::map<std::string, std::string, std::less<>> first_screen(const Recognizer& r, const Report& report,
                                                             const ReportOptions& o, const ReportWords& say) {
  const double share = static_cast<double>(report.right) / static_cast<double>(report.utterances);
  const auto with_role = std::count_if(report.survey.all.begin(), report.survey.all.end(),
                                       [](const SurveyedHead& h) { return h.role >= 0; });
  const std::string name = html(shown(o.model, 120));
  return {{"language", say.language()},
          {"name", name},
          {"title", say("{0}: what its heads do", name)},
          {"lead", say("A recogniser of {0} intents with {1} layers of attention, looked at through {2} "
                       "utterances of {3}.",
                       r.config().labels.size(), r.config().encoder.depth, grouped(report.utterances),
                       html(shown(o.data, 120)))},
          {"tiles", tile(percent(share), r.config().multi_label ? say("of utterances with all intents right")
                                                                : say("of utterances answered right")) +
                        tile(grouped(report.mistakes), say("mistakes")) +
                        tile(grouped(static_cast<Index>(r.config().labels.size())), say("intents")) +
                        tile(text(with_role, " / ", report.survey.all.size()), say("heads with a role"))},
          {"answers",
           text(say("{0} of {1} utterances are right.", grouped(report.right), grouped(report.utterances)),
                report.mistakes ? " " + say("Red is what went wrong, and where it went.") : "")}};
}

std::string json_data(const Recognizer& r, const Report& report, const RoleBook& book,
                      const std::vector<DrawnSentence>& gallery, const std::vector<DrawnSentence>& cases,
                      const std::string& language) {
  Index heads = report.survey.heads;
  const auto list = [&](const std::vector<DrawnSentence>& all) {
    std::string out;
    for (const DrawnSentence& s : all) {
      out += (out.empty() ? "" : ",") + json_of(s);
      for (const DrawnSentence::Head& h : s.heads) heads = max_of(heads, h.head + 1);
    }
    return "[" + out + "]";
  };
  const std::string shown_gallery = list(gallery), shown_cases = list(cases);
  return text("{\"version\":1,\"language\":\"", language,
              "\",\"model\":{\"layers\":", r.config().encoder.depth, ",\"heads\":", heads,
              "},\"heads\":", json_of(report.survey, book), ",\"gallery\":", shown_gallery,
              ",\"cases\":", shown_cases, "}");
}

}  // namespace

std::vector<std::string> standing_gallery() {
  return {"The animal didn't cross the street because it was too tired.", "机器人拿起红色的积木，因为它很轻",
          "第2年第3次调整", "不需要保险服务"};
}

Report make_report(const Recognizer& r, const Corpus& corpus, const RoleBook& book, Session& session,
                   const ReportOptions& o) {
  require(!corpus.rows.empty(), ErrorKind::bad_argument, "report", shown(corpus.name),
          " has no utterances; give some to look at");
  require(o.mistakes >= 0 && o.tokens >= 4 && o.tokens <= 65'535 && o.weight_bytes >= 0,
          ErrorKind::bad_argument, "report", "asked for ", o.mistakes, " mistakes of ", o.tokens,
          " tokens in ", o.weight_bytes, " bytes; give 0 or more, 4 to 65535 and 0 or more");
  const ReportWords say(o.language);
  Report report;
  const Answers answers = judge_answers(r, corpus, session);
  report.survey = survey_heads(r, corpus, book, session, o.survey);
  report.utterances = static_cast<Index>(corpus.rows.size());
  report.right = answers.right, report.mistakes = static_cast<Index>(answers.wrong.size());
  report.shown = min_of(o.mistakes, report.mistakes);

  std::vector<DrawnSentence> gallery, cases;
  std::vector<std::string> notes;
  for (const std::string& sentence : o.gallery) {
    const bool lent = o.encoder && gallery.empty();
    gallery.push_back(lent ? draw(*o.encoder, sentence, o, session)
                           : draw(r, sentence, kAllHeads, o, session));
  }
  const Index heads = heads_that_fit(r, corpus, answers, o);
  Index spent = 0;  // long texts may fill the page: those behind them come without weights
  for (Index i = 0; i < report.shown; ++i) {
    const auto u = static_cast<std::size_t>(answers.wrong[static_cast<std::size_t>(i)]);
    cases.push_back(draw(r, corpus.rows[u].text, spent < o.weight_bytes ? heads : kNoHead, o, session));
    spent += ceil_div(static_cast<Index>(cases.back().weights.size()), 3) * 4;
    notes.push_back(missed_note(r, corpus.rows[u], answers.given[u], {o.redact, say}, session));
  }

  std::vector<std::string> names;
  for (std::size_t l = 0; l < answers.labels.size(); ++l)
    names.push_back(label_name(answers, static_cast<Index>(l), say));
  std::string curves;
  for (const Curve& c : o.curves) curves += svg_curve(c, say);
  auto parts = first_screen(r, report, o, say);
  parts.merge(std::map<std::string, std::string, std::less<>>{
      {"summary", summary_of(answers, report.survey, book, say)},
      {"confusion", svg_confusion(names, answers.counts, say)},
      {"labels", label_table(answers, say)},
      {"confused", confused_table(answers, say) + trust_section(trusted_answers(answers), say) +
                       (o.drift ? drift_section(*o.drift, say) : std::string())},
      {"training", o.curves.empty() ? say("This model folder holds no curves of its training.")
                                    : say("Steps from left to right; the number is where each curve ends.")},
      {"curves", curves},
      {"heads", heads_lead(report.survey, say)},
      {"grid", head_grid(report.survey, book, say) + roles_found(report.survey, book, say)},
      {"figures", head_figures(report.survey, book, say)},
      {"mistakes",
       report.mistakes == 0
           ? say("There are none in these data.")
           : say("{0} of {1}, the most confident first. Open one to see which words and heads led "
                 "there.",
                 grouped(report.shown), grouped(report.mistakes))},
      {"cases", case_list(r, corpus, answers, notes, o.redact, say)},
      {"about", about(r, report, book, o, say)},
      {"data", json_data(r, report, book, gallery, cases, say.language())},
      {"style", std::string(viewer_style())},
      {"script", std::string(viewer_script())}});
  report.page = filled(say.page(viewer_page()), parts);
  return report;
}

}  // namespace headwise
