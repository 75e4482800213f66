#include "headwise/lab/during/survey_history.h"

#include <algorithm>
#include <charconv>

#include "headwise/base/words.h"
#include "headwise/lab/survey/survey_words.h"
#include "headwise/model/json_object.h"

namespace headwise {
namespace {

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> all;
  for (std::size_t at = 0;;) {
    const std::size_t end = line.find(',', at);
    all.push_back(line.substr(at, end - at));
    if (end == line.npos) return all;
    at = end + 1;
  }
}

template <class T>
bool read_number(std::string_view word, T& to) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to);
  return error == std::errc() && end == word.data() + word.size();
}

/// Mean divergence from the other heads of its layer; 0 where there is none.
double apart_of(const HeadSurvey& s, std::size_t head) {
  double sum = 0;
  Index others = 0;
  for (std::size_t b = 0; s.apart.rows > 0 && b < s.heads.size(); ++b)
    if (b != head && s.heads[b].layer == s.heads[head].layer)
      sum += s.apart.at(static_cast<Index>(head), static_cast<Index>(b)), ++others;
  return others ? sum / static_cast<double>(others) : 0;
}

std::string first_line() {
  std::string line = "epoch,layer,head,roles";
  for (const std::string& name : history_figures()) line += "," + name;
  return line;
}

}  // namespace

std::vector<std::string> history_figures() {
  std::vector<std::string> all;
  for (std::size_t f = 0; f < kAllFigures; ++f) all.emplace_back(survey_figure(f).name);
  all.emplace_back("apart");
  return all;
}

SurveyHistory::SurveyHistory(std::string_view csv, std::string_view name) {
  const std::size_t figures = history_figures().size();
  Index number = 0;
  for (std::size_t at = 0; at < csv.size(); ++number) {
    const std::size_t end = std::min(csv.find('\n', at), csv.size());
    const std::string_view line = csv.substr(at, end - at);
    at = end + 1;
    const auto wrong = [&](bool fine) {
      require(fine, ErrorKind::bad_argument, "survey history", name, ": line ", number + 1,
              " is not from a survey over epochs of this version; delete the file");
    };
    if (number == 0) {
      wrong(line == first_line());
      continue;
    }
    const std::vector<std::string_view> fields = fields_of(line);
    wrong(fields.size() == figures + 4);
    HeadMoment m{.roles = std::string(fields[3]), .figures = std::vector<double>(figures)};
    bool fine =
        read_number(fields[0], m.epoch) && read_number(fields[1], m.layer) && read_number(fields[2], m.head);
    for (std::size_t f = 0; f < figures; ++f) fine &= read_number(fields[4 + f], m.figures[f]);
    wrong(fine && (moments_.empty() || m.epoch >= moments_.back().epoch));
    moments_.push_back(std::move(m));
  }
}

void SurveyHistory::add(Index epoch, const HeadSurvey& s) {
  while (!moments_.empty() && moments_.back().epoch >= epoch) moments_.pop_back();
  for (std::size_t h = 0; h < s.heads.size(); ++h) {
    const SurveyedModelHead& head = s.heads[h];
    HeadMoment m{
        .epoch = epoch, .layer = head.layer, .head = head.head, .roles = joined_words(head.roles, " | ")};
    for (const FigureValue& v : head.figures) m.figures.push_back(v.value);
    m.figures.push_back(apart_of(s, h));
    moments_.push_back(std::move(m));
  }
}

std::vector<Index> SurveyHistory::epochs() const {
  std::vector<Index> all;
  for (const HeadMoment& m : moments_)
    if (all.empty() || all.back() != m.epoch) all.push_back(m.epoch);
  return all;
}

std::string SurveyHistory::csv() const {
  std::string out = first_line() + "\n";
  for (const HeadMoment& m : moments_) {
    out += text(m.epoch, ",", m.layer, ",", m.head, ",", m.roles);
    for (const double x : m.figures) out += "," + survey_number(x);
    out += '\n';
  }
  return out;
}

std::string SurveyHistory::json() const {
  std::string names, rows;
  for (const std::string& name : history_figures())
    names += text(names.empty() ? "" : ", ", json_string(name));
  for (const HeadMoment& m : moments_) {
    std::string figures;
    for (const double x : m.figures) figures += text(figures.empty() ? "" : ", ", survey_number(x));
    rows += text(rows.empty() ? "" : ",\n  ", "{\"epoch\": ", m.epoch, ", \"layer\": ", m.layer,
                 ", \"head\": ", m.head, ", \"roles\": ", json_string(m.roles), ", \"figures\": [", figures,
                 "]}");
  }
  return text("{\"version\": 1, \"figures\": [", names, "],\n \"heads\": [\n  ", rows, "]}\n");
}

}  // namespace headwise
