#include <algorithm>
#include <cmath>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/lab/depth/collapse.h"
#include "headwise/lab/survey/head_map.h"
#include "headwise/lab/survey/head_survey.h"
#include "headwise/lab/survey/survey_words.h"

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

/// A figure over depth, the model's and the shuffled one's.
std::string depth_chart(std::string_view name, const std::vector<double>& own,
                        const std::vector<double>& other) {
  double most = 1e-9;
  for (const double x : own) most = std::max(most, x);
  for (const double x : other) most = std::max(most, x);
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
  return text("<div><h3>", name, "</h3><svg viewBox=\"0 0 240 110\" role=img aria-label=\"", name,
              " over depth\"><path fill=none stroke=#999 stroke-dasharray=\"4 3\" stroke-width=1.5 d=\"",
              path(other), "\"/><path fill=none stroke=#0072b2 stroke-width=2 d=\"", path(own),
              "\"/><text x=194 y=", decimal(kHigh - 10 - (kHigh - 24) * own.back() / most, 1), ">",
              survey_number(own.back()), "</text></svg></div>");
}

/// Mean of one figure over the heads of each layer.
std::string head_chart(const HeadSurvey& s, std::size_t f) {
  std::vector<double> own(static_cast<std::size_t>(s.layers)), other = own, count = own;
  for (const SurveyedModelHead& h : s.heads) {
    const auto l = static_cast<std::size_t>(h.layer);
    own[l] += h.figures[f].value, other[l] += h.figures[f].shuffled, ++count[l];
  }
  for (std::size_t l = 0; l < own.size(); ++l) own[l] /= count[l], other[l] /= count[l];
  if (std::isnan(own[0])) return {};        // not taken
  if (std::isnan(other[0])) other.clear();  // no shuffled model was read
  return depth_chart(survey_figure(f).name, own, other);
}

/// Rank collapse: all ways through the layers in one picture, by powers of ten.
std::string collapse_chart(const HeadSurvey& s) {
  constexpr double kWide = 420, kHigh = 220, kDeepest = -8;
  double low = -1;
  const auto power = [&](double x) { return std::max(kDeepest, std::log10(std::max(x, 1e-300))); };
  for (const CollapseWay& way : kCollapseWays)
    for (const FigureValue& v : s.depth[depth_figure_at(way.figure)])
      if (!std::isnan(v.value)) low = std::min(low, std::floor(power(v.value)));
  const auto place = [&](double x) { return 10 + (kHigh - 30) * power(x) / low; };
  std::string lines, names;
  for (double p = 0; p >= low; --p)
    lines += text("<path stroke=#ccc stroke-width=.5 d=\"M40,", decimal(place(std::pow(10, p)), 1), "H",
                  decimal(kWide, 1), "\"/><text x=0 y=", decimal(place(std::pow(10, p)) + 4, 1), ">1e",
                  decimal(p, 0), "</text>");
  bool any = false;
  for (std::size_t w = 0; w < std::size(kCollapseWays); ++w) {
    std::string d;
    const auto& figure = s.depth[depth_figure_at(kCollapseWays[w].figure)];
    for (std::size_t l = 0; l < figure.size() && !std::isnan(figure[l].value); ++l)
      d += text(l ? "L" : "M",
                decimal(40 + (kWide - 50) * static_cast<double>(l) /
                                 std::max(1.0, static_cast<double>(figure.size() - 1)),
                        1),
                ",", decimal(place(figure[l].value), 1));
    any |= !d.empty();
    lines += text("<path fill=none stroke-width=2 stroke=", kColours[w], " d=\"", d, "\"/>");
    names += text("<span style=\"color:", kColours[w], "\">&#9632;</span> ", kCollapseWays[w].words, " ");
  }
  if (!any) return {};
  return text(
      "<h2>Rank collapse</h2><p>What of the rows is not their mean, behind each layer. Attention alone makes "
      "all "
      "rows one; the residual path and the feed-forward hold them apart (Dong et al. 2021).</p><p "
      "class=small>",
      names, "</p><svg viewBox=\"0 0 ", decimal(kWide, 0), " ", decimal(kHigh, 0),
      "\" width=", decimal(kWide, 0), " role=img aria-label=\"rank collapse over depth\">", lines, "</svg>");
}

/// Rollout and flow: over depth, and of one text.
std::string paths(const HeadSurvey& s) {
  std::string charts, words;
  for (std::size_t f = 0; f < s.depth.size(); ++f) {
    if (kDepthFigures[f].name.starts_with("spread_") || std::isnan(s.depth[f][0].value)) continue;
    std::vector<double> own, other;
    for (const FigureValue& v : s.depth[f]) {
      own.push_back(v.value);
      if (!std::isnan(v.shuffled)) other.push_back(v.shuffled);
    }
    charts += depth_chart(kDepthFigures[f].name, own, other);
    words += text(f ? "; " : "", "<b>", kDepthFigures[f].name, "</b> ", kDepthFigures[f].sentence);
  }
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < s.shown.pieces.size(); ++i)
    rows.push_back({html(shown(s.shown.pieces[i])), percent(s.shown.rollout[i]), html_bar(s.shown.rollout[i]),
                    percent(s.shown.flow[i]), html_bar(s.shown.flow[i])});
  std::string table;
  if (!rows.empty())
    table = text("<p>Where the row of token ", s.shown.token, " of the first short text comes from:</p>",
                 html_table({"token", "#rollout", "", "#flow", ""}, rows));
  if (charts.empty()) return {};
  return text("<h2>Through all layers</h2><p class=small>", words, ".</p><div class=charts>", charts,
              "</div>", table);
}

std::string figure_table(const HeadSurvey& s) {
  std::vector<std::string> columns = {"#layer", "#head", "roles"};
  std::vector<std::size_t> taken;
  for (std::size_t f = 0; f < kAllFigures; ++f)
    if (!std::isnan(s.heads[0].figures[f].value)) taken.push_back(f);
  for (const std::size_t f : taken) columns.push_back(text("#", survey_figure(f).name));
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> chance = {"", "", "chance"};
  for (const std::size_t f : taken)
    chance.push_back(f < kTextFigureCount ? decimal(s.chance[f].value, 3) : "");
  if (!std::isnan(s.chance[0].value)) rows.push_back(chance);
  for (const SurveyedModelHead& h : s.heads) {
    std::vector<std::string> row = {text(h.layer), text(h.head), html(joined_words(h.roles, ", "))};
    for (const std::size_t f : taken)
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

std::string_view survey_style() { return kStyle; }
std::string_view survey_colour(Index number) {
  return kColours[static_cast<std::size_t>(number) % std::size(kColours)];
}

std::string survey_map(const HeadSurvey& s) {
  if (s.apart.rows == 0) return {};
  double low_x = 1e300, high_x = -1e300, low_y = 1e300, high_y = -1e300;
  for (const SurveyedModelHead& h : s.heads)
    low_x = std::min(low_x, h.x), high_x = std::max(high_x, h.x), low_y = std::min(low_y, h.y),
    high_y = std::max(high_y, h.y);
  const double size = std::max({high_x - low_x, high_y - low_y, 1e-12});
  std::vector<std::pair<double, double>> dots;
  for (const SurveyedModelHead& h : s.heads)
    dots.emplace_back(50 + 540 * (h.x - low_x) / size, 50 + 540 * (h.y - low_y) / size);
  const auto names = label_places(dots, {.wide = 30, .high = 13, .dot = 4});
  // The page is as large as its dots and names are.
  double right = 0, left = 1e9, top = 1e9, bottom = 0;
  for (const auto& all : {dots, names})
    for (const auto& [x, y] : all)
      left = std::min(left, x), right = std::max(right, x), top = std::min(top, y),
      bottom = std::max(bottom, y);
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"", decimal(left - 20, 1), " ",
           decimal(top - 12, 1), " ", decimal(right - left + 40, 1), " ", decimal(bottom - top + 24, 1),
           "\" role=\"img\" aria-label=\"map of heads: near ones look alike\" "
           "font-family=\"system-ui,sans-serif\" font-size=\"11\">");
  for (std::size_t i = 0; i < s.heads.size(); ++i) {
    const SurveyedModelHead& h = s.heads[i];
    const auto [x, y] = dots[i];
    const auto [nx, ny] = names[i];
    const bool far = std::abs(nx - x) > 22 || std::abs(ny - y) > 14;
    out += text("<g><title>layer ", h.layer, " head ", h.head, h.roles.empty() ? "" : ": ",
                html(joined_words(h.roles, ", ")), "</title>");
    if (far)
      out += text("<path d=\"M", decimal(x, 1), ",", decimal(y, 1), "L", decimal(nx, 1), ",", decimal(ny, 1),
                  "\" stroke=\"#999\" stroke-width=\".5\"/>");
    out += text("<circle cx=\"", decimal(x, 1), "\" cy=\"", decimal(y, 1), "\" r=\"4\" fill=\"",
                kColours[static_cast<std::size_t>(h.cluster) % std::size(kColours)],
                "\"/><text text-anchor=\"middle\" x=\"", decimal(nx, 1), "\" y=\"", decimal(ny + 4, 1), "\">",
                h.layer, ".", h.head, "</text></g>");
  }
  return out + "</svg>";
}

std::string survey_page(const HeadSurvey& s, std::string_view model, std::string_view texts) {
  std::string charts, words;
  for (std::size_t f = 0; f < kAllFigures; ++f) charts += head_chart(s, f);
  for (std::size_t f = 0; f < kAllFigures; ++f)
    words += text(f ? "; " : "", "<b>", survey_figure(f).name, "</b> ",
                  html(std::string(survey_figure(f).sentence)));
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
      "<p class=small>A role is claimed where a figure reaches its threshold and lies above every head of "
      "its "
      "layer in a model with shuffled "
      "attention matrices, and above heads with random weights, by a tenth and by both 95 % intervals.</p>",
      map.empty() ? ""
                  : "<h2>Which heads look alike</h2><p>Near heads have alike weights: classical scaling of "
                    "the square roots of their mean "
                    "Jensen-Shannon divergences. Colours are clusters.</p>",
      map, relation_table(s), paths(s), collapse_chart(s),
      "<h2>Over depth</h2><p>Means of all heads of a layer; dashed: the shuffled model.</p><div "
      "class=charts>",
      charts, "</div><h2>All figures</h2><p class=small>", words,
      ". Point at a number for its interval and the shuffled model's.</p>", figure_table(s),
      "</body></html>\n");
}

}  // namespace headwise
