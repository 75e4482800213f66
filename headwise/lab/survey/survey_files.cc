#include <charconv>
#include <cmath>

#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/words.h"
#include "headwise/lab/survey/head_survey.h"
#include "headwise/lab/survey/survey_words.h"
#include "headwise/model/json_object.h"

namespace headwise {
namespace {

std::string list_of(const std::vector<double>& all) {
  std::string out;
  for (const double x : all) out += text(out.empty() ? "" : ", ", survey_number(x));
  return text("[", out, "]");
}

/// As survey_number; what is no number is `otherwise`.
std::string number_or(double x, const char* otherwise) {
  return std::isnan(x) ? otherwise : survey_number(x);
}

std::string value_json(const FigureValue& v) {
  return text("[", number_or(v.value, "null"), ", ", survey_number(v.half), ", ",
              number_or(v.shuffled, "null"), ", ", survey_number(v.shuffled_half), "]");
}
std::string value_csv(const FigureValue& v) {
  return text(",", number_or(v.value, ""), ",", survey_number(v.half), ",", number_or(v.shuffled, ""));
}

/// Keys `depth` and `path`, with a comma behind each.
std::string depth_json(const HeadSurvey& s) {
  std::string depth, pieces;
  for (std::size_t f = 0; f < s.depth.size(); ++f) {
    std::string layers;
    for (const FigureValue& v : s.depth[f]) layers += text(layers.empty() ? "" : ", ", value_json(v));
    depth += text(f ? ",\n  " : "", json_string(kDepthFigures[f].name), ": [", layers, "]");
  }
  for (const std::string& piece : s.shown.pieces)
    pieces += text(pieces.empty() ? "" : ", ", json_string(shown(piece)));
  return text(" \"depth\": {\n  ", depth, "},\n \"path\": {\"token\": ", s.shown.token, ", \"pieces\": [",
              pieces, "], \"rollout\": ", list_of(s.shown.rollout), ", \"flow\": ", list_of(s.shown.flow),
              "},\n");
}

}  // namespace

std::string survey_number(double x) {
  char digits[32];
  const double finite = std::isfinite(x) ? x : 0;
  return std::string(
      digits, std::to_chars(digits, digits + sizeof digits, finite, std::chars_format::general, 9).ptr);
}

std::string joined_words(const std::vector<std::string>& all, std::string_view between) {
  std::string out;
  for (const std::string& s : all) out += text(out.empty() ? "" : between, s);
  return out;
}

std::string survey_json(const HeadSurvey& s) {
  std::string names, heads, relations, chance;
  for (std::size_t f = 0; f < kAllFigures; ++f)
    names += text(f ? ", " : "", json_string(survey_figure(f).name));
  for (const FigureValue& c : s.chance)
    chance +=
        text(chance.empty() ? "" : ", ", "[", number_or(c.value, "null"), ", ", survey_number(c.half), "]");
  for (const RelationName& r : s.relations)
    relations +=
        text(relations.empty() ? "" : ", ", "{\"name\": ", json_string(r.name), ", \"count\": ", r.count,
             ", \"offset\": ", r.offset, ", \"baseline\": ", survey_number(r.baseline), "}");
  for (const SurveyedModelHead& h : s.heads) {
    std::string figures, roles, related;
    for (const FigureValue& v : h.figures) figures += text(figures.empty() ? "" : ", ", value_json(v));
    for (const std::string& r : h.roles) roles += text(roles.empty() ? "" : ", ", json_string(r));
    for (const RelationValue& v : h.relations)
      related += text(related.empty() ? "" : ", ", "[", survey_number(v.forth), ", ", survey_number(v.back),
                      ", ", survey_number(v.shuffled_forth), ", ", survey_number(v.shuffled_back), "]");
    heads += text(heads.empty() ? "" : ",\n  ", "{\"layer\": ", h.layer, ", \"head\": ", h.head,
                  ", \"roles\": [", roles, "], \"offset\": ", h.offset, ", \"cluster\": ", h.cluster,
                  ", \"place\": [", survey_number(h.x), ", ", survey_number(h.y), "], \"figures\": [",
                  figures, "], \"relations\": [", related, "]}");
  }
  return text("{\"version\": 1, \"layers\": ", s.layers, ", \"texts\": ", s.texts, ", \"tokens\": ", s.tokens,
              ", \"causal\": ", s.causal ? "true" : "false", ",\n \"figures\": [", names,
              "],\n \"relations\": [", relations, "],\n \"chance\": [", chance, "],\n", depth_json(s),
              " \"heads\": [\n  ", heads, "]}\n");
}

std::string survey_csv(const HeadSurvey& s) {
  std::string out = "layer,head,roles,cluster,x,y";
  for (std::size_t f = 0; f < kAllFigures; ++f)
    out += text(",", survey_figure(f).name, ",", survey_figure(f).name, "_half,", survey_figure(f).name,
                "_shuffled");
  for (const RelationName& r : s.relations) out += text(",", r.name, "_forth,", r.name, "_back");
  out += '\n';
  for (const SurveyedModelHead& h : s.heads) {
    out += text(h.layer, ",", h.head, ",", joined_words(h.roles, " | "), ",", h.cluster, ",",
                survey_number(h.x), ",", survey_number(h.y));
    for (const FigureValue& v : h.figures) out += value_csv(v);
    for (const RelationValue& v : h.relations)
      out += text(",", survey_number(v.forth), ",", survey_number(v.back));
    out += '\n';
  }
  return out;
}

std::string depth_csv(const HeadSurvey& s) {
  std::string out = "layer";
  for (const DepthName& n : kDepthFigures)
    out += text(",", n.name, ",", n.name, "_half,", n.name, "_shuffled");
  out += '\n';
  for (Index l = 0; l < s.layers; ++l) {
    out += text(l);
    for (const auto& figure : s.depth) {
      const FigureValue& v = figure[static_cast<std::size_t>(l)];
      out += value_csv(v);
    }
    out += '\n';
  }
  return out;
}

std::string path_csv(const HeadSurvey& s) {
  std::string out = "token,piece,rollout,flow\n";
  for (std::size_t i = 0; i < s.shown.pieces.size(); ++i) {
    std::string piece;
    for (const char c : shown(s.shown.pieces[i])) piece += c == '"' ? "\"\"" : std::string(1, c);
    out += text(i, ",\"", piece, "\",", survey_number(s.shown.rollout[i]), ",",
                survey_number(s.shown.flow[i]), "\n");
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
    for (Index j = 0; j < s.apart.columns; ++j) out += text(",", survey_number(s.apart.at(i, j)));
    out += '\n';
  }
  return out;
}

}  // namespace headwise
