#include "headwise/lab/cut/keep_roles.h"

#include <algorithm>
#include <set>

#include "headwise/base/error.h"

namespace headwise {
namespace {

std::set<std::string> relation_names(const std::vector<RelatedText>& related) {
  std::set<std::string> names;
  for (const RelatedText& t : related)
    for (const WordRelation& r : t.relations) names.insert(r.name);
  return names;
}

}  // namespace

std::vector<std::string> parse_roles(std::string_view list, const std::vector<RelatedText>& related,
                                     std::string_view op) {
  const std::set<std::string> relations = relation_names(related);
  std::string known;
  std::set<std::string, std::less<>> names(relations.begin(), relations.end());
  for (const FigureName& f : kTextFigures)
    if (f.role_from > 0) names.emplace(f.name), known += text(f.name, ", ");
  names.emplace("syntax");
  std::vector<std::string> roles;
  while (!list.empty() || roles.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view word = list.substr(0, comma);
    require(names.count(word) == 1, ErrorKind::bad_argument, op, "\"", word, "\" is no role; give some of ",
            known, "syntax, or a relation of the trees, with commas between");
    require(word != "syntax" || !relations.empty(), ErrorKind::bad_argument, op,
            "heads of syntax are found in trees; give some with --conllu");
    roles.emplace_back(word);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return roles;
}

std::vector<HeadName> heads_with_roles(const HeadSurvey& s, const std::vector<std::string>& roles) {
  std::vector<HeadName> all;
  for (const SurveyedModelHead& h : s.heads) {
    const auto wanted = [&](const std::string& role) {
      const std::string name = role.substr(0, role.rfind(' '));  // "positional -1", "nsubj >"
      const bool relation = role.ends_with(" >") || role.ends_with(" <");
      return std::any_of(roles.begin(), roles.end(), [&](const std::string& want) {
        return want == name || want == role || (relation && want == "syntax");
      });
    };
    if (std::any_of(h.roles.begin(), h.roles.end(), wanted)) all.push_back({h.layer, h.head});
  }
  return all;
}

}  // namespace headwise
