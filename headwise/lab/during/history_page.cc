#include <algorithm>
#include <map>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/words.h"
#include "headwise/lab/during/survey_history.h"
#include "headwise/lab/survey/survey_words.h"

namespace headwise {
namespace {

using HeadName = std::pair<Index, Index>;  // layer, head

/// One figure over the epochs, a line a head, coloured by layer.
std::string chart(const std::vector<HeadMoment>& moments, const std::vector<Index>& epochs,
                  std::size_t figure, std::string_view name) {
  constexpr double kWide = 300, kHigh = 150, kLeft = 40;
  double low = 0, high = 1e-9;
  for (const HeadMoment& m : moments)
    low = std::min(low, m.figures[figure]), high = std::max(high, m.figures[figure]);
  const double first = static_cast<double>(epochs.front()),
               span = std::max(1.0, static_cast<double>(epochs.back()) - first);
  std::map<HeadName, std::string> lines;
  for (const HeadMoment& m : moments) {
    std::string& d = lines[{m.layer, m.head}];
    d += text(d.empty() ? "M" : "L",
              decimal(kLeft + (kWide - kLeft - 10) * (static_cast<double>(m.epoch) - first) / span, 1), ",",
              decimal(kHigh - 20 - (kHigh - 30) * (m.figures[figure] - low) / (high - low), 1));
  }
  std::string paths;
  for (const auto& [head, d] : lines)
    paths += text("<path fill=none stroke-width=1.5 stroke=", survey_colour(head.first), " d=\"", d,
                  "\"><title>layer ", head.first, " head ", head.second, "</title></path>");
  return text("<div><h3>", name, "</h3><svg viewBox=\"0 0 300 150\" role=img aria-label=\"", name,
              " over epochs\"><text x=0 y=14>", decimal(high, 2), "</text><text x=0 y=130>", decimal(low, 2),
              "</text><text x=40 y=146>", epochs.front(), "</text><text x=280 y=146>", epochs.back(),
              "</text>", paths, "</svg></div>");
}

/// When roles came: a row a head that ever had one, a column an epoch.
std::string role_table(const std::vector<HeadMoment>& moments, const std::vector<Index>& epochs) {
  std::map<HeadName, std::vector<std::string>> rows;
  for (const HeadMoment& m : moments) rows[{m.layer, m.head}].push_back(m.roles);
  std::vector<std::string> columns = {"#layer", "#head"};
  for (const Index e : epochs) columns.push_back(text("epoch ", e));
  std::vector<std::vector<std::string>> cells;
  for (const auto& [head, roles] : rows) {
    if (std::all_of(roles.begin(), roles.end(), [](const std::string& r) { return r.empty(); })) continue;
    std::vector<std::string> row = {text(head.first), text(head.second)};
    for (const std::string& r : roles) row.push_back(html(r));
    cells.push_back(std::move(row));
  }
  if (cells.empty()) return "<p>No head had a role in any epoch.</p>";
  return text("<div class=wide>", html_table(columns, cells), "</div>");
}

}  // namespace

std::string SurveyHistory::page(std::string_view model, std::string_view texts) const {
  const std::vector<Index> all = epochs();
  std::string charts, key;
  Index layers = 0, heads = 0;
  for (const HeadMoment& m : moments_) layers = max_of(layers, m.layer + 1), heads += m.epoch == all.front();
  const std::vector<std::string> names = history_figures();
  for (std::size_t f = 0; f < names.size() && !all.empty(); ++f) charts += chart(moments_, all, f, names[f]);
  for (Index l = 0; l < layers; ++l)
    key += text("<span style=\"color:", survey_colour(l), "\">&#9632;</span> layer ", l, " ");
  return text(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>Heads of ",
      html(shown(model)), " as they learn</title><style>", survey_style(), "</style><body><h1>Heads of ",
      html(shown(model)), " as they learn</h1><p>", heads, " heads in ", layers, " layers, after ",
      all.size(), " epochs, on texts of ", html(shown(texts)), ".</p><h2>Roles</h2>",
      role_table(moments_, all),
      "<h2>Figures over epochs</h2><p>A line is a head; point at it for its name. ", key,
      "</p><div class=charts>", charts, "</div></body></html>\n");
}

}  // namespace headwise
