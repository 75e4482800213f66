#include <algorithm>
#include <charconv>
#include <cmath>

#include "headwise/analysis/page.h"
#include "headwise/analysis/shown_text.h"
#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/lab/survey/head_survey.h"

namespace headwise {
namespace {

// Colours that stay apart for the colour-blind (Okabe and Ito), repeated beyond eight clusters.
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                    "#56b4e9", "#d55e00", "#999933", "#666666"};

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 "
    "1rem;color:#1c1c1c;background:#fff}"
    "h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}table{border-collapse:collapse;font-size:."
    "82rem}"
    "td,th{padding:.2rem .5rem;border-bottom:1px solid "
    "#ddd;text-align:left;white-space:nowrap}.n{text-align:right;"
    "font-variant-numeric:tabular-nums}.wide{overflow-x:auto}svg{max-width:100%;height:auto}text{font:11px "
    "system-ui,"
    "sans-serif;fill:currentColor}.grid td{min-width:5.4rem;background:#f4f6f8;border:2px solid "
    "#fff;vertical-align:top;"
    "white-space:normal;font-size:.74rem}.grid td.role{background:#cfe5f5}.small{color:#555;font-size:.85rem}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1rem}.charts "
    "h3{font-size:.9rem;"
    "margin:.2rem "
    "0}@media(prefers-color-scheme:dark){body{background:#15181b;color:#e8e8e8}td,th{border-color:#333}"
    ".grid td{background:#20252a;border-color:#15181b}.grid td.role{background:#1d4560}.small{color:#aaa}}";

std::string number(double x) {
  char digits[32];
  const double finite = std::isfinite(x) ? x : 0;
  return std::string(
      digits, std::to_chars(digits, digits + sizeof digits, finite, std::chars_format::general, 9).ptr);
}

std::string joined(const std::vector<std::string>& all, std::string_view between) {
  std::string out;
  for (const std::string& s : all) out += text(out.empty() ? "" : between, s);
  return out;
}

const FigureName& figure(std::size_t f) {
  return f < kTextFigureCount ? kTextFigures[f] : kMatrixFigures[f - kTextFigureCount];
}
constexpr std::size_t kAll = kTextFigureCount + kMatrixFigureCount;

/// Heads as rows of cells, layer by layer.
std::string grid(const HeadSurvey& s) {
  std::string out = "<div class=wide><table class=grid>";
  Index layer = -1;
  for (const SurveyedModelHead& h : s.heads) {
    if (h.layer != layer)
      out += text(layer < 0 ? "" : "</tr>", "<tr><th>layer ", h.layer, "</th>"), layer = h.layer;
    std::string roles;
    for (const std::string& role : h.roles) roles += text(roles.empty() ? "" : "<br>", html(role));
    out += text(h.roles.empty() ? "<td>" : "<td class=role>", h.head, roles.empty() ? "" : "<br>", roles,
                "</td>");
  }
  return out + "</tr></table></div>";
}

/// Mean of one figure over the heads of each layer, the model's and the shuffled one's.
std::string depth_chart(const HeadSurvey& s, std::size_t f) {
  std::vector<double> own(static_cast<std::size_t>(s.layers)), other = own, count = own;
  for (const SurveyedModelHead& h : s.heads) {
    const auto l = static_cast<std::size_t>(h.layer);
    own[l] += h.figures[f].value, other[l] += h.figures[f].shuffled, ++count[l];
  }
  double most = 1e-9;
  for (std::size_t l = 0; l < own.size(); ++l)
    own[l] /= count[l], other[l] /= count[l], most = std::max({most, own[l], other[l]});
  constexpr double kWide = 240, kHigh = 110;
  const auto path = [&](const std::vector<double>& y) {
    std::string d;
    for (std::size_t l = 0; l < y.size(); ++l)
      d += text(l ? "L" : "M",
                decimal(10 + (kWide - 60) * static_cast<double>(l) /
                                 std::max(1.0, static_cast<double>(y.size() - 1)),
                        1),
                ",", decimal(kHigh - 14 - (kHigh - 24) * y[l] / most, 1));
    return d;
  };
  return text("<div><h3>", figure(f).name, "</h3><svg viewBox=\"0 0 240 110\" role=img aria-label=\"",
              figure(f).name,
              " over depth\"><path fill=none stroke=#999 stroke-dasharray=\"4 3\" stroke-width=1.5 d=\"",
              path(other), "\"/><path fill=none stroke=#0072b2 stroke-width=2 d=\"", path(own),
              "\"/><text x=194 y=", decimal(kHigh - 10 - (kHigh - 24) * own.back() / most, 1), ">",
              number(own.back()), "</text></svg></div>");
}

std::string figure_table(const HeadSurvey& s) {
  std::vector<std::string> columns = {"#layer", "#head", "roles"};
  for (std::size_t f = 0; f < kAll; ++f) columns.push_back(text("#", figure(f).name));
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> chance = {"", "", "chance"};
  for (std::size_t f = 0; f < kAll; ++f)
    chance.push_back(f < kTextFigureCount ? decimal(s.chance[f].value, 3) : "");
  rows.push_back(chance);
  for (const SurveyedModelHead& h : s.heads) {
    std::vector<std::string> row = {text(h.layer), text(h.head), html(joined(h.roles, ", "))};
    for (std::size_t f = 0; f < kAll; ++f)
      row.push_back(text("<span title=\"±", decimal(h.figures[f].half, 3), ", shuffled ",
                         decimal(h.figures[f].shuffled, 3), "\">", decimal(h.figures[f].value, 3),
                         "</span>"));
    rows.push_back(std::move(row));
  }
  return text("<div class=wide>", html_table(columns, rows), "</div>");
}

std::string relation_table(const HeadSurvey& s) {
  if (s.relations.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (std::size_t r = 0; r < s.relations.size(); ++r) {
    const SurveyedModelHead* best = &s.heads[0];
    bool back = false;
    double most = -1;
    for (const SurveyedModelHead& h : s.heads)
      for (const bool b : {false, true})
        if (const double x = b ? h.relations[r].back : h.relations[r].forth; x > most)
          most = x, best = &h, back = b;
    const RelationName& n = s.relations[r];
    rows.push_back({html(n.name), text(n.count),
                    text(best->layer, ".", best->head, back ? " back" : " forth"), percent(most),
                    percent(back ? best->relations[r].shuffled_back : best->relations[r].shuffled_forth),
                    percent(n.baseline), text(n.offset)});
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return std::stol(a[1]) > std::stol(b[1]); });
  return text(
      "<h2>Relations</h2><p>The head that finds each relation most often: forth is from the dependent, or "
      "the "
      "first word of a pair, to the other.</p>",
      html_table(
          {"relation", "#count", "best head", "#right", "#shuffled", "#best offset right", "#that offset"},
          rows));
}

}  // namespace

std::string survey_map(const HeadSurvey& s) {
  if (s.apart.rows == 0) return {};
  double low_x = 1e300, high_x = -1e300, low_y = 1e300, high_y = -1e300;
  for (const SurveyedModelHead& h : s.heads)
    low_x = std::min(low_x, h.x), high_x = std::max(high_x, h.x), low_y = std::min(low_y, h.y),
    high_y = std::max(high_y, h.y);
  const double size = std::max({high_x - low_x, high_y - low_y, 1e-12});
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 640\" role=\"img\" aria-label=\"map of "
      "heads: near ones look alike\">";
  for (const SurveyedModelHead& h : s.heads) {
    const double x = 30 + 560 * (h.x - low_x) / size, y = 30 + 560 * (h.y - low_y) / size;
    out += text("<g><title>layer ", h.layer, " head ", h.head, h.roles.empty() ? "" : ": ",
                html(joined(h.roles, ", ")), "</title><circle cx=\"", decimal(x, 1), "\" cy=\"",
                decimal(y, 1), "\" r=\"7\" fill=\"",
                kColours[static_cast<std::size_t>(h.cluster) % std::size(kColours)], "\"/><text x=\"",
                decimal(x + 9, 1), "\" y=\"", decimal(y + 4, 1), "\">", h.layer, ".", h.head, "</text></g>");
  }
  return out + "</svg>";
}

std::string survey_json(const HeadSurvey& s) {
  std::string names, heads, relations, chance;
  for (std::size_t f = 0; f < kAll; ++f) names += text(f ? ", " : "", json_string(figure(f).name));
  for (const FigureValue& c : s.chance)
    chance += text(chance.empty() ? "" : ", ", "[", number(c.value), ", ", number(c.half), "]");
  for (const RelationName& r : s.relations)
    relations +=
        text(relations.empty() ? "" : ", ", "{\"name\": ", json_string(r.name), ", \"count\": ", r.count,
             ", \"offset\": ", r.offset, ", \"baseline\": ", number(r.baseline), "}");
  for (const SurveyedModelHead& h : s.heads) {
    std::string figures, roles, related;
    for (const FigureValue& v : h.figures)
      figures += text(figures.empty() ? "" : ", ", "[", number(v.value), ", ", number(v.half), ", ",
                      number(v.shuffled), ", ", number(v.shuffled_half), "]");
    for (const std::string& r : h.roles) roles += text(roles.empty() ? "" : ", ", json_string(r));
    for (const RelationValue& v : h.relations)
      related += text(related.empty() ? "" : ", ", "[", number(v.forth), ", ", number(v.back), ", ",
                      number(v.shuffled_forth), ", ", number(v.shuffled_back), "]");
    heads +=
        text(heads.empty() ? "" : ",\n  ", "{\"layer\": ", h.layer, ", \"head\": ", h.head, ", \"roles\": [",
             roles, "], \"offset\": ", h.offset, ", \"cluster\": ", h.cluster, ", \"place\": [", number(h.x),
             ", ", number(h.y), "], \"figures\": [", figures, "], \"relations\": [", related, "]}");
  }
  return text("{\"version\": 1, \"layers\": ", s.layers, ", \"texts\": ", s.texts, ", \"tokens\": ", s.tokens,
              ", \"causal\": ", s.causal ? "true" : "false", ",\n \"figures\": [", names,
              "],\n \"relations\": [", relations, "],\n \"chance\": [", chance, "],\n \"heads\": [\n  ",
              heads, "]}\n");
}

std::string survey_csv(const HeadSurvey& s) {
  std::string out = "layer,head,roles,cluster,x,y";
  for (std::size_t f = 0; f < kAll; ++f)
    out += text(",", figure(f).name, ",", figure(f).name, "_half,", figure(f).name, "_shuffled");
  for (const RelationName& r : s.relations) out += text(",", r.name, "_forth,", r.name, "_back");
  out += '\n';
  for (const SurveyedModelHead& h : s.heads) {
    out += text(h.layer, ",", h.head, ",", joined(h.roles, " | "), ",", h.cluster, ",", number(h.x), ",",
                number(h.y));
    for (const FigureValue& v : h.figures)
      out += text(",", number(v.value), ",", number(v.half), ",", number(v.shuffled));
    for (const RelationValue& v : h.relations) out += text(",", number(v.forth), ",", number(v.back));
    out += '\n';
  }
  return out;
}

std::string apart_csv(const HeadSurvey& s) {
  std::string out = "head";
  for (const SurveyedModelHead& h : s.heads) out += text(",", h.layer, ".", h.head);
  out += '\n';
  for (Index i = 0; i < s.apart.rows; ++i) {
    const SurveyedModelHead& h = s.heads[static_cast<std::size_t>(i)];
    out += text(h.layer, ".", h.head);
    for (Index j = 0; j < s.apart.columns; ++j) out += text(",", number(s.apart.at(i, j)));
    out += '\n';
  }
  return out;
}

std::string survey_page(const HeadSurvey& s, std::string_view model, std::string_view texts) {
  std::string charts, words;
  for (std::size_t f = 0; f < kAll; ++f) charts += depth_chart(s, f);
  for (std::size_t f = 0; f < kAll; ++f)
    words += text(f ? "; " : "", "<b>", figure(f).name, "</b> ", html(std::string(figure(f).sentence)));
  const auto named = std::count_if(s.heads.begin(), s.heads.end(),
                                   [](const SurveyedModelHead& h) { return !h.roles.empty(); });
  const std::string map = survey_map(s);
  return text(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>Heads of ",
      html(shown(model)), "</title><style>", kStyle, "</style><body><h1>Heads of ", html(shown(model)),
      "</h1><p>", s.heads.size(), " heads in ", s.layers, " layers, on ", grouped(s.texts), " texts of ",
      html(shown(texts)), " with ", grouped(s.tokens), " tokens. ", named,
      " heads have a role.</p><h2>Roles</h2>", grid(s),
      "<p class=small>A role is claimed where a figure reaches its threshold and lies above that of the same "
      "head in a model with shuffled "
      "attention matrices, and above heads with random weights, by a tenth and by both 95 % intervals.</p>",
      map.empty() ? ""
                  : "<h2>Which heads look alike</h2><p>Near heads have alike weights: classical scaling of "
                    "the square roots of their mean "
                    "Jensen-Shannon divergences. Colours are clusters.</p>",
      map, relation_table(s),
      "<h2>Over depth</h2><p>Means of all heads of a layer; dashed: the shuffled model.</p><div "
      "class=charts>",
      charts, "</div><h2>All figures</h2><p class=small>", words,
      ". Point at a number for its interval and the shuffled model's.</p>", figure_table(s),
      "</body></html>\n");
}

}  // namespace headwise
