#include <algorithm>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/lab/cut/cut_curve.h"
#include "headwise/lab/survey/survey_words.h"

namespace headwise {
namespace {

constexpr double kWide = 240, kHigh = 190, kLeft = 62, kRight = 14, kTop = 30, kBottom = 34;

/// What one picture shows of a state, and how its ends are written.
struct Panel {
  std::string_view name;
  double (*value)(const CutState&);
  std::string (*words)(double);
};

std::string in_millions(double x) { return decimal(x / 1e6, 2) + " M"; }
std::string in_bytes(double x) { return decimal(x / 1024, 1) + " KiB"; }
std::string in_milliseconds(double x) { return decimal(1e3 * x, 2) + " ms"; }
std::string as_loss(double x) { return decimal(x, 3); }

std::vector<Panel> panels_of(const std::vector<CutState>& states) {
  std::vector<Panel> all;
  if (states.front().right >= 0)
    all.push_back({"right answers", [](const CutState& s) { return s.right; }, percent});
  else
    all.push_back({"1 - cosine", [](const CutState& s) { return s.loss; }, as_loss});
  all.push_back(
      {"parameters", [](const CutState& s) { return static_cast<double>(s.parameters); }, in_millions});
  all.push_back({"keys and values of a token",
                 [](const CutState& s) { return static_cast<double>(s.kv_bytes); }, in_bytes});
  all.push_back({"time of a text", [](const CutState& s) { return s.seconds; }, in_milliseconds});
  return all;
}

std::string panel_svg(const Panel& p, const std::vector<CutState>& states, double x0) {
  double low = p.value(states.front()), high = low;
  for (const CutState& s : states) low = std::min(low, p.value(s)), high = std::max(high, p.value(s));
  const double tall = high > low ? high - low : 1, most = static_cast<double>(states.front().heads),
               least = static_cast<double>(states.back().heads), span = most > least ? most - least : 1;
  const auto x_of = [&](const CutState& s) {
    return x0 + kLeft + (static_cast<double>(s.heads) - least) / span * (kWide - kLeft - kRight);
  };
  const auto y_of = [&](double v) { return kHigh - kBottom - (v - low) / tall * (kHigh - kTop - kBottom); };
  std::string path, dots;
  for (const CutState& s : states) {
    const std::string x = decimal(x_of(s), 1), y = decimal(y_of(p.value(s)), 1);
    path += text(path.empty() ? "M" : "L", x, ",", y);
    dots += text("<circle cx=\"", x, "\" cy=\"", y, "\" r=\"3\" fill=\"#b4460f\"><title>", s.heads,
                 " heads: ", p.words(p.value(s)), "</title></circle>");
  }
  const auto label = [&](double x, double y, const char* anchor, const std::string& words) {
    return text("<text x=\"", decimal(x, 1), "\" y=\"", decimal(y, 1), "\" text-anchor=\"", anchor, "\">",
                words, "</text>");
  };
  return text("<text x=\"", x0 + kLeft, "\" y=\"16\" font-weight=\"bold\">", p.name, "</text>",
              label(x0 + kLeft - 6, y_of(high) + 4, "end", p.words(high)),
              high > low ? label(x0 + kLeft - 6, y_of(low) + 4, "end", p.words(low)) : std::string(),
              label(x_of(states.back()), kHigh - 14, "middle", text(states.back().heads)),
              label(x_of(states.front()), kHigh - 14, "middle", text(states.front().heads)),
              label(x0 + (kLeft + kWide - kRight) / 2, kHigh - 2, "middle", "heads kept"),
              "<path fill=\"none\" stroke=\"#14406b\" stroke-width=\"2\" d=\"", path, "\"/>", dots);
}

}  // namespace

std::string curve_csv(const std::vector<CutState>& states) {
  std::string csv = "heads,parameters,kv_bytes,loss,right,seconds,time\n";
  for (const CutState& s : states)
    csv += text(s.heads, ",", s.parameters, ",", s.kv_bytes, ",", survey_number(s.loss), ",",
                s.right < 0 ? std::string() : survey_number(s.right), ",", survey_number(s.seconds), ",",
                survey_number(s.time), "\n");
  return csv;
}

std::string curve_svg(const std::vector<CutState>& states) {
  require(!states.empty(), ErrorKind::bad_argument, "cut", "the curve has no state; measure some");
  const std::vector<Panel> panels = panels_of(states);
  const double wide = kWide * static_cast<double>(panels.size());
  std::string svg = text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", wide, " ", kHigh,
                         "\" role=\"img\" aria-label=\"what the model gives and costs, against heads kept\" "
                         "font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\"><rect width=\"",
                         wide, "\" height=\"", kHigh, "\" fill=\"#fff\"/>");
  for (std::size_t i = 0; i < panels.size(); ++i)
    svg += panel_svg(panels[i], states, kWide * static_cast<double>(i));
  return svg + "</svg>\n";
}

std::string curve_page(const std::vector<CutState>& states, std::string_view model) {
  const bool labels = states.front().right >= 0;
  std::vector<std::string> columns = {"#heads"};
  if (labels) columns.emplace_back("#right");
  for (const char* name : {"#loss", "#parameters", "#bytes of keys and values", "#milliseconds", "#time"})
    columns.emplace_back(name);
  std::vector<std::vector<std::string>> rows;
  for (const CutState& s : states) {
    rows.push_back({text(s.heads)});
    if (labels) rows.back().push_back(percent(s.right));
    for (const std::string& cell : {decimal(s.loss, 4), grouped(s.parameters), grouped(s.kv_bytes),
                                    decimal(1e3 * s.seconds, 3), percent(s.time)})
      rows.back().push_back(cell);
  }
  return text(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content=\"width=device-width,initial-scale=1\"><title>Heads cut from ",
      html(shown(model)), "</title><style>", survey_style(), "</style><body><h1>Heads cut from ",
      html(shown(model)), "</h1><p>From ", states.front().heads, " heads to ", states.back().heads,
      ". Keys and values are those of one token through all layers, as f32. Time is that of one "
      "text in a batch; the last column is its share of the whole model's.</p>",
      curve_svg(states), "<div class=wide>", html_table(columns, rows), "</div></body></html>\n");
}

}  // namespace headwise
