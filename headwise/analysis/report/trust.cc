#include "headwise/analysis/report/trust.h"

#include <algorithm>
#include <cmath>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/report_words.h"
#include "headwise/base/error.h"

namespace headwise {
namespace {

double of(Index part, Index whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// A picture with both axes from 0 to 1.
struct Frame {
  static constexpr double kWide = 340, kHigh = 250, kLeft = 52, kTop = 12, kRight = 28, kBottom = 44;
  static double px(double x) { return kLeft + x * (kWide - kLeft - kRight); }
  static double py(double y) { return kHigh - kBottom - y * (kHigh - kTop - kBottom); }
  static std::string at(double x, double y) { return text(decimal(px(x), 1), ",", decimal(py(y), 1)); }
};

/// Axes with their words; `inside` is drawn between them.
std::string framed(const std::string& title, const std::string& inside, const std::string& below,
                   const ReportWords& say) {
  const std::string beside = say("answers that are right");
  std::string marks;
  for (const double m : {0.0, 0.5, 1.0})
    marks +=
        text("<text x=", decimal(Frame::px(m), 1), " y=", decimal(Frame::kHigh - Frame::kBottom + 16, 1),
             " text-anchor=middle>", decimal(100 * m, 0), " %</text><text x=", decimal(Frame::kLeft - 6, 1),
             " y=", decimal(Frame::py(m) + 4, 1), " text-anchor=end>", decimal(100 * m, 0), " %</text>");
  return text("<div class=card><h3>", title, "</h3><svg viewBox=\"0 0 ", Frame::kWide, " ", Frame::kHigh,
              "\" role=img aria-label=\"", say("{0}; the table says the same", title),
              "\"><path class=axis fill=none d=\"M", Frame::at(0, 1), "L", Frame::at(0, 0), "L",
              Frame::at(1, 0), "\"/>", marks, inside, "<text x=", decimal(Frame::px(0.5), 1),
              " y=", decimal(Frame::kHigh - 8, 1), " text-anchor=middle>", below,
              "</text><text transform=\"translate(12 ", decimal(Frame::py(0.5), 1),
              ") rotate(-90)\" text-anchor=middle>", beside, "</text></svg></div>");
}

}  // namespace

double Coverage::share() const { return of(answered, texts); }
double Coverage::accuracy() const { return of(right, answered); }

Coverage covered(std::span<const Trusted> answers, double abstain) {
  Coverage c{.texts = static_cast<Index>(answers.size())};
  for (const Trusted& a : answers)
    if (a.confidence >= abstain) ++c.answered, c.right += a.right;
  return c;
}

Trust trust_of(std::span<const Trusted> answers) {
  Trust t;
  for (const Trusted& a : answers) {
    const auto bin = static_cast<std::size_t>(std::clamp(a.confidence, 0.0, 1.0) * Trust::kBins);
    Trust::Bin& b = t.bins[std::min(bin, Trust::kBins - 1)];
    ++b.answers, b.right += a.right, b.confidence += a.confidence;
  }
  for (const Trust::Bin& b : t.bins)
    t.error +=
        std::abs(static_cast<double>(b.right) - b.confidence);  // share |accuracy - confidence|, times all
  if (!answers.empty()) t.error /= static_cast<double>(answers.size());
  std::vector<Trusted> order(answers.begin(), answers.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const Trusted& a, const Trusted& b) { return a.confidence > b.confidence; });
  Index right = 0;
  const auto all = static_cast<Index>(order.size());
  for (Index i = 0; i < all; ++i) {
    right += order[static_cast<std::size_t>(i)].right;
    if ((i + 1) * 100 / all > i * 100 / all) t.curve.emplace_back(of(i + 1, all), of(right, i + 1));
  }
  return t;
}

std::string trust_section(std::span<const Trusted> answers, const ReportWords& say) {
  const Trust t = trust_of(answers);
  std::string bars, path;
  for (std::size_t i = 0; i < Trust::kBins; ++i) {
    const Trust::Bin& b = t.bins[i];
    if (b.answers == 0) continue;
    const double x = b.confidence / static_cast<double>(b.answers), y = of(b.right, b.answers);
    bars += text("<circle class=cell cx=", decimal(Frame::px(x), 1), " cy=", decimal(Frame::py(y), 1),
                 " r=", decimal(3 + 9 * std::sqrt(of(b.answers, static_cast<Index>(answers.size()))), 1),
                 "><title>", say("{0} answers: confidence {1}, right {2}", b.answers, percent(x), percent(y)),
                 "</title></circle>");
  }
  for (const auto& [share, accuracy] : t.curve)
    path += text(path.empty() ? "M" : "L", Frame::at(share, accuracy));
  std::vector<std::vector<std::string>> rows;
  for (const double abstain : {0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95}) {
    const Coverage c = covered(answers, abstain);
    rows.push_back(
        {percent(abstain), percent(c.share()), percent(c.accuracy()), grouped(c.texts - c.answered)});
  }
  return text(
      "<h3 style=\"margin-top:28px\">", say("How far a confidence can be trusted"), "</h3><p class=small>",
      say("A confidence of 80 % should be right 8 times in 10. The mean distance between the two, the "
          "expected "
          "calibration error, is {0}. <code>--abstain 0.8</code> holds back what is less sure.",
          percent(t.error)),
      "</p><div class=two>",
      framed(say("Reliability"),
             text("<path class=axis stroke-dasharray=\"4 4\" d=\"M", Frame::at(0, 0), "L", Frame::at(1, 1),
                  "\"/>", bars),
             say("confidence"), say),
      framed(say("Accuracy against coverage"), text("<path class=curve d=\"", path, "\"/>"),
             say("texts that are answered, the surest first"), say),
      "</div><div class=\"card wide\" style=\"margin-top:20px\">",
      html_table({say("#abstain below"), say("#answered"), say("#right of those"), say("#held back")}, rows),
      "</div>");
}

}  // namespace headwise
