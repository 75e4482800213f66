#include <algorithm>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/report_answers.h"
#include "headwise/analysis/report/shown_text.h"

namespace headwise {
namespace {

std::string role_name(const SurveyedHead& h, const RoleBook& book) {
  return h.role < 0 ? "" : html(shown(book.roles()[static_cast<std::size_t>(h.role)].name, 24));
}
std::string signed_number(double x) { return (x < 0 ? "−" : "+") + decimal(x < 0 ? -x : x, 3); }

std::string joined(const std::vector<std::string>& all, const ReportWords& say) {
  std::string out;
  for (const std::string& s : all) out += (out.empty() ? "" : ", ") + html(shown(s, 60));
  return out.empty() ? say("none") : out;
}

constexpr std::size_t kMostPairs = 12, kNamedPairs = 3, kNamedHeads = 3;

}  // namespace

std::string shown_sentence(std::string_view text, bool redact) {
  if (!redact) return shown(text);
  const std::vector<bool> hide = private_bytes(text);
  return shown(text, {0, static_cast<Index>(text.size())}, &hide);
}

std::string head_grid(const Survey& s, const RoleBook& book, const ReportWords& say) {
  if (s.all.empty()) return {};
  double most = 0;
  for (const SurveyedHead& h : s.all) most = std::max(most, h.importance);
  std::string out = "<table class=grid><thead><tr><th></th>";
  for (Index h = 0; h < s.heads; ++h) out += text("<th>", say("head {0}", h), "</th>");
  out += "</tr></thead><tbody>";
  for (Index layer = 0; layer < s.layers; ++layer) {
    out += text("<tr><th>", say("layer {0}", layer), "</th>");
    for (Index n = 0; n < s.heads; ++n) {
      const SurveyedHead& h = s.at(layer, n);
      if (!h.there) {
        out += "<td></td>";
        continue;
      }
      const double v = most > 0 ? h.importance / most : 0;
      const std::string role = role_name(h, book);
      out += text("<td><button type=button class=head id=head-", layer, "-", n,
                  " style=\"--v:", decimal(v, 3), "\" aria-label=\"", say("layer {0} head {1}", layer, n),
                  " ", role, "\"><b>", role, "</b><span>", decimal(h.importance, 3), "</span></button></td>");
    }
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

std::string head_figures(const Survey& s, const RoleBook& book, const ReportWords& say) {
  std::vector<std::vector<std::string>> rows;
  for (const SurveyedHead& h : s.all)
    if (h.there)
      rows.push_back({std::to_string(h.layer), std::to_string(h.head), role_name(h, book),
                      decimal(h.importance, 4), signed_number(h.hurt), decimal(h.figures.entropy, 2),
                      percent(h.figures.spread), percent(h.figures.confidence),
                      decimal(h.figures.distance, 1)});
  return html_table({say("#layer"), say("#head"), say("role"), say("#importance"), say("#loss when off"),
                     say("#entropy"), say("#of uniform"), say("#confidence"), say("#distance")},
                    rows);
}

std::string roles_found(const Survey& s, const RoleBook& book, const ReportWords& say) {
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, std::string> form;  // role -> heads that have it
  for (const SurveyedHead& h : s.all)
    for (std::size_t r = 0; r < h.roles.size(); ++r) {
      const RoleScore& score = h.roles[r];
      const std::string name = html(shown(book.roles()[r].name, 24));
      if (!score.claimed) continue;
      if (!book.roles()[r].meaning) {
        std::string& heads = form[name];
        heads += text(heads.empty() ? "" : ", ", h.layer, ".", h.head);
        continue;
      }
      rows.push_back({text("<span class=pill>", name, "</span>"), say("layer {0}, head {1}", h.layer, h.head),
                      grouped(score.pairs), say("{0} × uniform", decimal(score.ratio(), 1)),
                      signed_number(score.hurt_with), signed_number(score.hurt_without),
                      decimal(score.certainty, 1)});
    }
  std::string out = text("<h3 style=\"margin-top:28px\">", say("Roles found"), "</h3>");
  out += rows.empty()
             ? text("<p class=small>", say("No head has earned a role of meaning on these data."), "</p>")
             : text("<div class=wide>",
                    html_table(
                        {say("role"), say("head"), say("#pairs"), say("#looks there"),
                         say("#loss when off, utterances with"), say("#without"), say("#standard errors")},
                        rows),
                    "</div>");
  for (const auto& [name, heads] : form)
    out += text("<p class=small>", say("By form alone, {0} (layer.head): {1}.", name, heads), "</p>");
  return out;
}

std::string label_name(const Answers& a, Index label, const ReportWords& say) {
  const std::string& name = a.labels[static_cast<std::size_t>(label)].name;
  return label + 1 == static_cast<Index>(a.labels.size()) ? say(name) : shown(name, 60);
}

std::string label_table(const Answers& a, const ReportWords& say) {
  std::vector<std::size_t> order;
  for (std::size_t l = 0; l < a.labels.size(); ++l)
    if (a.labels[l].right + a.labels[l].missed + a.labels[l].extra > 0) order.push_back(l);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return a.labels[x].f1() < a.labels[y].f1(); });
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t i : order) {
    const Answers::Label& l = a.labels[i];
    const auto share = [](Index n, Index of) {
      return of > 0 ? percent(static_cast<double>(n) / static_cast<double>(of)) : std::string("–");
    };
    rows.push_back({html(label_name(a, static_cast<Index>(i), say)), html_bar(l.f1()), decimal(l.f1(), 3),
                    share(l.right, l.right + l.extra), share(l.right, l.right + l.missed),
                    grouped(l.right + l.missed)});
  }
  return html_table({say("label"), "F1", "#", say("#precision"), say("#recall"), say("#true")}, rows);
}

std::vector<std::pair<Index, std::pair<Index, Index>>> confused_pairs(const Answers& a) {
  std::vector<std::pair<Index, std::pair<Index, Index>>> pairs;
  for (const auto& [pair, count] : a.counts)
    if (pair.first != pair.second) pairs.push_back({-count, pair});
  std::sort(pairs.begin(), pairs.end());
  for (auto& [count, pair] : pairs) count = -count;
  return pairs;
}

std::string confused_table(const Answers& a, const ReportWords& say) {
  auto pairs = confused_pairs(a);
  if (pairs.empty()) return {};
  if (pairs.size() > kMostPairs) pairs.resize(kMostPairs);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [count, pair] : pairs)
    rows.push_back(
        {html(label_name(a, pair.first, say)), html(label_name(a, pair.second, say)), grouped(count)});
  return text("<div class=\"card wide\" style=\"margin-top:20px\"><h3>", say("Most frequent confusions"),
              "</h3>", html_table({say("true"), say("given"), say("#times")}, rows), "</div>");
}

std::string summary_of(const Answers& a, const Survey& s, const RoleBook& book, const ReportWords& say) {
  const auto all = static_cast<Index>(a.given.size());
  std::string out = say("{0} of {1} utterances are right, {2}.", grouped(a.right), grouped(all),
                        percent(static_cast<double>(a.right) / static_cast<double>(all)));
  std::string wrong, heads;
  auto pairs = confused_pairs(a);
  pairs.resize(std::min(pairs.size(), kNamedPairs));
  for (const auto& [count, pair] : pairs)
    wrong += (wrong.empty() ? "" : say("; ")) + say("<b>{0}</b> taken for <b>{1}</b> ({2})",
                                                    html(label_name(a, pair.first, say)),
                                                    html(label_name(a, pair.second, say)), grouped(count));
  if (!wrong.empty()) out += " " + say("What goes wrong most: {0}.", wrong);
  std::vector<const SurveyedHead*> order;
  for (const SurveyedHead& h : s.all)
    if (h.there) order.push_back(&h);
  std::stable_sort(order.begin(), order.end(),
                   [](const SurveyedHead* x, const SurveyedHead* y) { return x->hurt > y->hurt; });
  for (std::size_t i = 0; i < std::min(order.size(), kNamedHeads); ++i) {
    const SurveyedHead& h = *order[i];
    if (h.hurt <= 0) break;
    const std::string role = role_name(h, book);
    heads += (heads.empty() ? "" : say("; ")) + say("layer {0}, head {1}", h.layer, h.head) +
             (role.empty() ? "" : " <span class=pill>" + role + "</span>") + " " + signed_number(h.hurt);
  }
  if (!heads.empty()) out += " " + say("Heads that matter most, with the loss when each is off: {0}.", heads);
  return "<p class=card id=summary>" + out + "</p>";
}

std::string case_list(const Recognizer& r, const Corpus& corpus, const Answers& a,
                      std::span<const std::string> notes, bool redact, const ReportWords& say) {
  std::string out;
  for (std::size_t i = 0; i < notes.size(); ++i) {
    const auto u = static_cast<std::size_t>(a.wrong[i]);
    std::vector<std::string> given;
    for (const Index l : a.given[u].labels) {
      given.push_back(r.config().labels[static_cast<std::size_t>(l)]);
      for (const IntentSpan& s : a.given[u].spans)  // of a recogniser that cuts
        if (s.label == l && !redact)
          given.back() +=
              say(", said by \"{0}\"",
                  shown(corpus.rows[u].text.substr(static_cast<std::size_t>(s.span.begin),
                                                   static_cast<std::size_t>(s.span.end - s.span.begin)),
                        60));
    }
    out += text("<details class=case><summary><span class=say>",
                html(shown_sentence(corpus.rows[u].text, redact)), "</span><span class=verdict><em>",
                joined(corpus.rows[u].labels, say), "</em> → <s>", joined(given, say),
                "</s></span><span class=\"n small\">", percent(a.given[u].confidence), "</span></summary>",
                notes[i], "</details>");
  }
  return out.empty() ? text("<p class=small>", say("Nothing to show."), "</p>") : out;
}

std::string json_of(const DrawnSentence& s) {
  std::string tokens, words, special, importance, heads;
  const auto add = [](std::string& list, const std::string& item) {
    list += (list.empty() ? "" : ",") + item;
  };
  for (const std::string& t : s.tokens) add(tokens, script_string(t));
  for (const Index i : s.words) add(words, std::to_string(i));
  for (const Index i : s.special) add(special, std::to_string(i));
  for (const double x : s.importance) add(importance, decimal(x, 4));
  for (const DrawnSentence::Head& h : s.heads)
    add(heads, text("[", h.layer, ",", h.head, ",", decimal(h.importance, 4), "]"));
  return text("{\"x\":", script_string(s.text), ",\"m\":", script_string(s.model),
              ",\"pl\":", script_string(s.given), ",\"t\":[", tokens, "],\"g\":[", words, "],\"s\":[",
              special, "],\"i\":[", importance, "],\"h\":[", heads, "],\"w\":\"", base64(s.weights), "\"}");
}

std::string json_of(const Survey& s, const RoleBook& book) {
  std::string out;
  for (const SurveyedHead& h : s.all) {
    std::string roles;
    for (std::size_t r = 0; r < h.roles.size(); ++r) {
      const RoleScore& score = h.roles[r];
      if (score.pairs == 0) continue;
      roles +=
          text(roles.empty() ? "" : ",", "{\"name\":", script_string(book.roles()[r].name),
               ",\"meaning\":", book.roles()[r].meaning ? "true" : "false", ",\"pairs\":", score.pairs,
               ",\"ratio\":", decimal(score.ratio(), 3), ",\"with\":", decimal(score.hurt_with, 4),
               ",\"without\":", decimal(score.hurt_without, 4), ",\"looks\":", score.looks ? "true" : "false",
               ",\"claimed\":", score.claimed ? "true" : "false", "}");
    }
    const std::string role = h.role < 0 ? "" : book.roles()[static_cast<std::size_t>(h.role)].name;
    out += text(out.empty() ? "" : ",", "{\"layer\":", h.layer, ",\"head\":", h.head,
                ",\"role\":", script_string(role), ",\"importance\":", decimal(h.importance, 5),
                ",\"hurt\":", decimal(h.hurt, 5), ",\"entropy\":", decimal(h.figures.entropy, 4),
                ",\"confidence\":", decimal(h.figures.confidence, 4),
                ",\"distance\":", decimal(h.figures.distance, 3), ",\"roles\":[", roles, "]}");
  }
  return "[" + out + "]";
}

}  // namespace headwise
