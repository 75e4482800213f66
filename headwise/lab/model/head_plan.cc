#include "headwise/lab/model/head_plan.h"

#include <algorithm>

#include "headwise/model/json_object.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

std::string list_of(const std::vector<Index>& all) {
  std::string s = "[";
  for (const Index i : all) s += text(s.size() > 1 ? ", " : "", i);
  return s + "]";
}

}  // namespace

void HeadPlan::take_out(const HeadName& h) {
  std::vector<Index>& row = cut[at(h.layer)];
  row.insert(std::upper_bound(row.begin(), row.end(), h.head), h.head);
}

bool HeadPlan::has(const HeadName& h) const {
  const std::vector<Index>& row = cut[at(h.layer)];
  return !std::binary_search(row.begin(), row.end(), h.head);
}

Index HeadPlan::left(Index layer) const {
  return heads[at(layer)] - static_cast<Index>(cut[at(layer)].size());
}

Index HeadPlan::left() const {
  Index sum = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) sum += left(static_cast<Index>(i));
  return sum;
}

std::vector<Index> HeadPlan::kept(Index layer) const {
  std::vector<Index> all;
  for (Index h = 0; h < heads[at(layer)]; ++h)
    if (has({layer, h})) all.push_back(h);
  return all;
}

std::string plan_text(const HeadPlan& plan) {
  std::string cut;
  for (std::size_t i = 0; i < plan.cut.size(); ++i)
    if (!plan.cut[i].empty()) cut += text(cut.empty() ? "" : ", ", '"', i, "\": ", list_of(plan.cut[i]));
  return text("{\"heads\": ", list_of(plan.heads), ", \"cut\": {", cut, "}}\n");
}

HeadPlan parse_plan(std::string_view words, std::string_view where, const std::vector<Index>& heads) {
  const JsonObject json(words, where);
  for (const std::string& key : json.keys())
    require(key == "heads" || key == "cut", ErrorKind::bad_argument, where, "there is no setting \"", key,
            "\"; a plan has \"heads\" and \"cut\"");
  if (json.integers("heads") != heads)
    json.refuse("heads", "the model has ", list_of(heads), " heads by layer; make a plan for this model");
  HeadPlan plan(heads);
  const JsonObject cut = json.object("cut");
  for (const std::string& key : cut.keys()) {
    const bool number = !key.empty() && key.size() < 5 && key.find_first_not_of("0123456789") == key.npos;
    const Index layer = number ? std::stol(key) : -1;
    require(layer >= 0 && layer < static_cast<Index>(heads.size()), ErrorKind::bad_argument, where, "\"", key,
            "\" is no layer; there are 0 to ", heads.size() - 1);
    for (const Index h : cut.integers(key)) {
      require(h >= 0 && h < heads[at(layer)] && plan.has({layer, h}), ErrorKind::bad_argument, where,
              "layer ", layer, " is told to lose head ", h, "; name heads 0 to ", heads[at(layer)] - 1,
              ", each once");
      plan.take_out({layer, h});
    }
  }
  check_plan(plan, where);
  return plan;
}

void check_plan(const HeadPlan& plan, std::string_view op) {
  require(plan.left() > 0, ErrorKind::bad_argument, op,
          "no layer would keep a head; keep one of the model's ", HeadPlan(plan.heads).left());
}

}  // namespace headwise
