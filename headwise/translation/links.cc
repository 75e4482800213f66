#include "headwise/translation/links.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

bool has(const WordLinks& links, const Link& l) { return std::binary_search(links.begin(), links.end(), l); }

WordLinks sorted(WordLinks links) {
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

/// An alignment that grows, and which words have a link.
struct Growing {
  std::set<Link> links;
  std::set<Index> sources, targets;

  void add(const Link& l) { links.insert(l), sources.insert(l.source), targets.insert(l.target); }
  bool free_source(const Link& l) const { return !sources.count(l.source); }
  bool free_target(const Link& l) const { return !targets.count(l.target); }
};

void grow(Growing& g, const WordLinks& all) {
  constexpr Index kSteps[][2] = {{-1, 0}, {0, -1}, {1, 0}, {0, 1}, {-1, -1}, {-1, 1}, {1, -1}, {1, 1}};
  for (bool grew = true; grew;) {
    grew = false;
    for (const Link& at : std::vector<Link>(g.links.begin(), g.links.end()))
      for (const auto& [s, t] : kSteps) {
        const Link next{at.source + s, at.target + t};
        if (!has(all, next) || g.links.count(next) || (!g.free_source(next) && !g.free_target(next)))
          continue;
        g.add(next), grew = true;
      }
  }
}

void finish(Growing& g, const WordLinks& links, bool both) {
  for (const Link& l : links) {
    const bool source = g.free_source(l), target = g.free_target(l);
    if (both ? source && target : source || target) g.add(l);
  }
}

double share(Index part, Index all) { return all ? static_cast<double>(part) / static_cast<double>(all) : 0; }

/// Takes a whole number off the front of `s`; refuses what is none.
Index take_number(std::string_view& s, std::string_view where, Index line, std::string_view item) {
  Index n = 0;
  const auto [rest, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  require(error == std::errc() && n >= 0, ErrorKind::bad_argument, where, "line ", line, ": ", quoted(item),
          " is no link; write 0-0 where it is sure, 0?0 where it is possible");
  s.remove_prefix(static_cast<std::size_t>(rest - s.data()));
  return n;
}

GoldPair parse_line(std::string_view text, std::string_view where, Index line) {
  const std::size_t colon = text.find(':');
  GoldPair pair;
  std::string_view number = trimmed(text.substr(0, std::min(colon, text.size())));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), pair.line);
  require(colon != text.npos && error == std::errc() && end == number.data() + number.size() && pair.line > 0,
          ErrorKind::bad_argument, where, "line ", line,
          " does not begin with the number of a pair and \":\"; write \"12: 0-0 1?2\"");
  for (std::string_view rest = trimmed(text.substr(colon + 1)); !rest.empty(); rest = trimmed(rest)) {
    std::string_view item = rest.substr(0, rest.find(' '));
    rest.remove_prefix(item.size());
    std::string_view left = item;
    Link l{.source = take_number(left, where, line, item)};
    const char kind = left.empty() ? ' ' : left[0];
    if (!left.empty()) left.remove_prefix(1);
    l.target = take_number(left, where, line, item);
    require((kind == '-' || kind == '?') && left.empty(), ErrorKind::bad_argument, where, "line ", line, ": ",
            quoted(item), " is no link; write 0-0 where it is sure, 0?0 where it is possible");
    if (kind == '-') pair.sure.push_back(l);
    pair.possible.push_back(l);
  }
  pair.sure = sorted(std::move(pair.sure)), pair.possible = sorted(std::move(pair.possible));
  return pair;
}

}  // namespace

Merge parse_merge(std::string_view name) {
  std::string all;
  for (std::size_t i = 0; i < std::size(kLinkMergeNames); ++i) {
    if (kLinkMergeNames[i] == name) return static_cast<Merge>(i);
    all += text(i ? ", " : "", kLinkMergeNames[i]);
  }
  throw Error(ErrorKind::bad_argument,
              text("align: there is no merge ", quoted(name), "; give one of ", all));
}

WordLinks merge_links(const WordLinks& forward, const WordLinks& backward, Merge merge) {
  if (merge == Merge::argmax) return forward;
  WordLinks both, either = forward;
  std::set_intersection(forward.begin(), forward.end(), backward.begin(), backward.end(),
                        std::back_inserter(both));
  if (merge == Merge::intersection) return both;
  either.insert(either.end(), backward.begin(), backward.end());
  either = sorted(std::move(either));
  if (merge == Merge::join) return either;
  Growing g;
  for (const Link& l : both) g.add(l);
  grow(g, either);
  if (merge != Merge::grow_diag)
    for (const WordLinks* direction : {&forward, &backward})
      finish(g, *direction, merge == Merge::grow_diag_final_and);
  return WordLinks(g.links.begin(), g.links.end());
}

WordLinks best_of_rows(std::span<const float> weights, Index targets, Index sources) {
  WordLinks links;
  for (Index t = 0; t < targets; ++t) {
    const auto row =
        weights.subspan(static_cast<std::size_t>(t * sources), static_cast<std::size_t>(sources));
    const auto best = std::max_element(row.begin(), row.end());
    if (best != row.end() && *best > 0) links.push_back({best - row.begin(), t});
  }
  return sorted(std::move(links));
}

WordLinks best_of_columns(std::span<const float> weights, Index targets, Index sources) {
  WordLinks links;
  for (Index s = 0; s < sources; ++s) {
    Index best = 0;
    const auto at = [&](Index t) { return weights[static_cast<std::size_t>(t * sources + s)]; };
    for (Index t = 1; t < targets; ++t)
      if (at(t) > at(best)) best = t;
    if (targets > 0 && at(best) > 0) links.push_back({s, best});
  }
  return links;
}

std::vector<float> shares_of(std::span<const float> weights, Index targets, Index sources) {
  std::vector<double> shares(weights.begin(), weights.end());
  const auto divide = [&](Index lines, Index step, Index count, Index stride) {
    for (Index i = 0; i < lines; ++i) {
      double sum = 0;
      for (Index j = 0; j < count; ++j) sum += shares[static_cast<std::size_t>(i * step + j * stride)];
      for (Index j = 0; sum > 0 && j < count; ++j)
        shares[static_cast<std::size_t>(i * step + j * stride)] /= sum;
    }
  };
  divide(sources, 1, targets, sources);
  divide(targets, sources, sources, 1);
  std::vector<float> found;
  for (const double s : shares) found.push_back(static_cast<float>(s));
  return found;
}

std::string pharaoh(const WordLinks& links) {
  std::string out;
  for (const Link& l : links) out += text(out.empty() ? "" : " ", l.source, "-", l.target);
  return out;
}

std::vector<GoldPair> parse_gold(std::string_view all, std::string_view where) {
  std::vector<GoldPair> pairs;
  std::set<Index> seen;
  for (Index number = 1; !all.empty(); ++number) {
    const std::size_t end = std::min(all.find('\n'), all.size());
    std::string_view line = all.substr(0, end);
    all.remove_prefix(std::min(end + 1, all.size()));
    line = trimmed(line.substr(0, line.find('#')), " \t\r");
    if (line.empty()) continue;
    pairs.push_back(parse_line(line, where, number));
    require(seen.insert(pairs.back().line).second, ErrorKind::bad_argument, where, "line ", number,
            " is for pair ", pairs.back().line, " again; give each pair once");
  }
  return pairs;
}

void LinkScore::add(const WordLinks& found, const GoldPair& gold) {
  links += static_cast<Index>(found.size()), sure += static_cast<Index>(gold.sure.size());
  for (const Link& l : found) in_sure += has(gold.sure, l), in_possible += has(gold.possible, l);
}
double LinkScore::precision() const { return share(in_possible, links); }
double LinkScore::recall() const { return share(in_sure, sure); }
double LinkScore::error_rate() const {
  return links + sure ? 1 - share(in_sure + in_possible, links + sure) : 0;
}

}  // namespace headwise
