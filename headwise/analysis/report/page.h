// Page: the pieces of a self-contained HTML page: a template, tables, and pictures that need no script.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {

/// viewer/page.html, viewer/style.css and the scripts of viewer/src one after another.
std::string_view viewer_page();
std::string_view viewer_style();
std::string_view viewer_script();

/// The template with every {{name}} replaced; what is put in is not read again. An unknown name is refused.
std::string filled(std::string_view page, const std::map<std::string, std::string, std::less<>>& parts);

/// 0.914 as `91.4 %`; numbers with so many digits behind the point; 12345 as `12,345`.
std::string percent(double x);
std::string decimal(double x, int digits);
std::string grouped(Index n);

/// Cells are HTML already; columns that begin with '#' are numbers.
std::string html_table(const std::vector<std::string>& columns,
                       const std::vector<std::vector<std::string>>& rows);
std::string html_bar(double share);

struct Curve;
class ReportWords;
/// One small picture a curve: axis labels, the curve, its last value.
std::string svg_curve(const Curve& curve, const ReportWords& say);
/// Counts of (row, column); the diagonal is right, everything else a mistake.
std::string svg_confusion(const std::vector<std::string>& labels,
                          const std::map<std::pair<Index, Index>, Index>& counts, const ReportWords& say);

}  // namespace headwise
