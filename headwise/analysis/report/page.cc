#include "headwise/analysis/report/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "headwise/analysis/report/report.h"
#include "headwise/analysis/report/report_words.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/error.h"

namespace headwise {

std::string filled(std::string_view page, const std::map<std::string, std::string, std::less<>>& parts) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t open = page.find("{{", at);
    out += page.substr(at, open - at);
    if (open == std::string_view::npos) return out;
    const std::size_t close = page.find("}}", open);
    const std::string_view name = page.substr(open + 2, close - open - 2);
    const auto part = parts.find(name);
    require(part != parts.end(), ErrorKind::bad_argument, "page", "nothing fills {{", name, "}}");
    out += part->second;
    at = close + 2;
  }
}

std::string decimal(double x, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, std::isfinite(x) ? x : 0.0);
  return text;
}
std::string percent(double x) { return decimal(100 * x, 1) + " %"; }

std::string grouped(Index n) {
  std::string s = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(s.size()) - 3; at > 0; at -= 3)
    s.insert(static_cast<std::size_t>(at), ",");
  return s;
}

std::string html_table(const std::vector<std::string>& columns,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><thead><tr>";
  const auto number = [&](std::size_t c) { return columns[c].starts_with('#'); };
  for (std::size_t c = 0; c < columns.size(); ++c)
    out += text(number(c) ? "<th class=n>" : "<th>", columns[c].substr(number(c) ? 1 : 0), "</th>");
  out += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      out += text(number(c) ? "<td class=n>" : "<td>", row[c], "</td>");
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

std::string html_bar(double share) {
  return text("<span class=bar><i style=\"width:", decimal(100 * std::clamp(share, 0.0, 1.0), 1),
              "%\"></i></span>");
}

std::string svg_curve(const Curve& c, const ReportWords& say) {
  constexpr double kWide = 340, kHigh = 150, kLeft = 8, kTop = 12, kRight = 56, kBottom = 22;
  if (c.points.empty()) return {};
  double low = c.points[0].second, high = low, from = c.points[0].first, to = from;
  for (const auto& [x, y] : c.points) {
    low = std::min(low, y), high = std::max(high, y);
    from = std::min(from, x), to = std::max(to, x);
  }
  const double tall = high > low ? high - low : 1, wide = to > from ? to - from : 1;
  const auto px = [&](double x) { return kLeft + (x - from) / wide * (kWide - kLeft - kRight); };
  const auto py = [&](double y) { return kHigh - kBottom - (y - low) / tall * (kHigh - kTop - kBottom); };
  std::string path;
  for (const auto& [x, y] : c.points)
    path += text(path.empty() ? "M" : "L", decimal(px(x), 1), ",", decimal(py(y), 1));
  const int digits = high < 10 ? 3 : 1;
  const auto& last = c.points.back();
  return text("<div class=card><h3>", html(say(c.name)), "</h3><svg viewBox=\"0 0 ", kWide, " ", kHigh,
              "\" role=img aria-label=\"",
              say("{0} ends at {1}", html(say(c.name)), decimal(last.second, digits)),
              "\"><line class=axis x1=", kLeft, " x2=", kWide - kRight, " y1=", kHigh - kBottom,
              " y2=", kHigh - kBottom, " /><path class=curve d=\"", path,
              "\"/><text x=", decimal(px(last.first) + 6, 1), " y=", decimal(py(last.second) + 4, 1), ">",
              decimal(last.second, digits), "</text><text x=", kLeft, " y=", kHigh - 6, ">", decimal(from, 0),
              "</text><text x=", kWide - kRight, " y=", kHigh - 6, " text-anchor=end>", decimal(to, 0),
              "</text></svg></div>");
}

std::string svg_confusion(const std::vector<std::string>& labels,
                          const std::map<std::pair<Index, Index>, Index>& counts, const ReportWords& say) {
  const auto n = static_cast<Index>(labels.size());
  std::vector<double> rows(labels.size(), 0);
  for (const auto& [pair, count] : counts)
    rows[static_cast<std::size_t>(pair.first)] += static_cast<double>(count);
  const double cell = 440.0 / static_cast<double>(std::max<Index>(n, 1));
  std::string out = text("<svg viewBox=\"0 0 440 440\" role=img aria-label=\"",
                         say("confusion of {0} labels; the tables say the same", n),
                         "\"><rect width=440 height=440 fill=none class=axis />");
  for (const auto& [pair, count] : counts) {
    const auto& [row, column] = pair;
    const double share = static_cast<double>(count) / rows[static_cast<std::size_t>(row)];
    out += text("<rect class=\"", row == column ? "cell" : "cell miss",
                "\" x=", decimal(static_cast<double>(column) * cell, 2),
                " y=", decimal(static_cast<double>(row) * cell, 2), " width=", decimal(cell * 0.94, 2),
                " height=", decimal(cell * 0.94, 2), " rx=1 fill-opacity=", decimal(0.18 + 0.82 * share, 2),
                "><title>", html(labels[static_cast<std::size_t>(row)]), " → ",
                html(labels[static_cast<std::size_t>(column)]), ": ", count, "</title></rect>");
  }
  return out + "</svg>";
}

}  // namespace headwise
