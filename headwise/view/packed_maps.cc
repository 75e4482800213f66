#include "headwise/view/packed_maps.h"

#include <algorithm>
#include <cmath>

#include "headwise/base/error.h"

namespace headwise {
namespace {

constexpr double kOctaves = 24;  // the smallest weight kept is 2^-24
constexpr double kWhole = 1e-3;  // a row whose sum is further from 1 is unusual

bool is_weight(float w) { return std::isfinite(w) && w >= 0; }

MapFigures& operator+=(MapFigures& sum, const MapFigures& f) {
  sum.entropy += f.entropy, sum.largest += f.largest, sum.distance += f.distance, sum.first += f.first;
  sum.self += f.self, sum.previous += f.previous, sum.next += f.next;
  return sum;
}
MapFigures operator/(const MapFigures& f, double n) {
  return {f.entropy / n, f.largest / n, f.distance / n, f.first / n, f.self / n, f.previous / n, f.next / n};
}

MapFigures figures_of(std::span<const float> row, Index query) {
  MapFigures f;
  for (std::size_t j = 0; j < row.size(); ++j) {
    const double w = row[j];
    if (w <= 0) continue;
    f.entropy -= w * std::log(w);
    f.largest = std::max(f.largest, w);
    f.distance += w * std::abs(static_cast<double>(j) - static_cast<double>(query));
  }
  const auto at = [&](Index j) {
    return j >= 0 && j < static_cast<Index>(row.size())
               ? static_cast<double>(row[static_cast<std::size_t>(j)])
               : 0.0;
  };
  f.first = at(0), f.self = at(query), f.previous = at(query - 1), f.next = at(query + 1);
  return f;
}

/// Row by row, with what is no weight as 0.
template <class Each>
void each_row(const AttentionMaps& maps, Index layer, Index head, PackedMaps* said, const Each& each) {
  std::vector<float> row(static_cast<std::size_t>(maps.keys.count()));
  for (Index i = 0; i < maps.queries.count(); ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    maps.row(layer, head, i, row);
    for (float& w : row)
      if (!is_weight(w)) {
        w = 0;
        if (said) ++said->not_numbers;
      }
    each(i, std::span<const float>(row));
  }
}

void put_count(std::vector<unsigned char>& to, std::size_t count) {
  to.push_back(static_cast<unsigned char>(count & 255));
  to.push_back(static_cast<unsigned char>(count >> 8));
}

void put_half(PackedLayer& to, unsigned half) {
  if (to.half_open)
    to.halves.back() = static_cast<unsigned char>(to.halves.back() | (half << 4u));
  else
    to.halves.push_back(static_cast<unsigned char>(half));
  to.half_open = !to.half_open;
}

void pack_row(std::span<const float> row, int least_code, PackedLayer& to, PackedMaps& said) {
  const auto largest = std::max_element(row.begin(), row.end());
  double sum = 0, kept = 0;
  std::size_t count = 0, next = 0;
  for (std::size_t j = 0; j < row.size(); ++j) {
    sum += row[j];
    const unsigned char code = weight_code(row[j]);
    const bool keep =
        code >= least_code || (code > 0 && row.begin() + static_cast<std::ptrdiff_t>(j) == largest);
    if (!keep || count == 65535) continue;
    std::size_t skipped = j - next;
    for (; skipped >= 15; skipped -= 15) put_half(to, 15);
    put_half(to, static_cast<unsigned>(skipped));
    put_half(to, code & 15u), put_half(to, code >> 4u);
    kept += row[j], next = j + 1, ++count;
  }
  put_count(to.counts, count);
  const double rest = std::clamp(sum - kept, 0.0, 1.0);
  to.rest.push_back(static_cast<unsigned char>(std::lround(255 * rest)));
  said.left_out += rest;
  ++said.rows;
  if (std::abs(sum - 1) > kWhole) ++said.unusual;
}

}  // namespace

unsigned char weight_code(float weight) {
  if (!(weight > 0)) return 0;
  const double place = 1 + std::log2(std::min(1.0, static_cast<double>(weight))) / kOctaves;
  return place < 0 ? 0 : static_cast<unsigned char>(1 + std::lround(254 * place));
}

float weight_of_code(unsigned char code) {
  return code == 0 ? 0.0f : static_cast<float>(std::exp2(kOctaves * ((code - 1) / 254.0 - 1)));
}

void check_maps(const AttentionMaps& maps, const char* op) {
  const auto bad = [&](auto&&... words) { throw Error(ErrorKind::bad_argument, text(op, ": ", words...)); };
  const Index queries = maps.queries.count(), keys = maps.keys.count();
  if (queries == 0 || keys == 0 || maps.heads.empty())
    bad("attention \"", maps.name, "\" has ", queries, " queries, ", keys, " keys and ", maps.heads.size(),
        " layers; give at least one of each");
  for (const ViewTokens* t : {&maps.queries, &maps.keys})
    if (!t->words.empty() && t->words.size() != t->texts.size())
      bad(t->texts.size(), " tokens but ", t->words.size(), " numbers of words; give one for each token");
  const auto sized = [&](const std::vector<std::vector<float>>& what, const char* name, Index tokens,
                         Index each) {
    if (what.empty()) return;
    if (what.size() != maps.heads.size())
      bad(name, " has ", what.size(), " layers, the weights have ", maps.heads.size());
    for (std::size_t l = 0; l < what.size(); ++l)
      if (static_cast<Index>(what[l].size()) != maps.heads[l] * tokens * each)
        bad(name, " of layer ", l, " has ", what[l].size(), " numbers; ", maps.heads[l], " heads of ", tokens,
            " tokens have ", maps.heads[l] * tokens * each);
  };
  sized(maps.value_norms, "value_norms", keys, 1);
  sized(maps.q, "q", queries, maps.head_dim);
  sized(maps.k, "k", keys, maps.head_dim);
  if (!maps.generation) return;
  const Generation& g = *maps.generation;
  Index heads = 0;
  for (const Index h : maps.heads) heads += h;
  const auto steps = static_cast<Index>(g.steps.size());
  if (g.prompt < 1 || g.prompt + steps != queries || queries != keys ||
      static_cast<Index>(g.written.size()) != queries)
    bad("a prompt of ", g.prompt, " tokens and ", steps, " that were written do not make ", queries,
        " queries");
  for (const auto* figures : {&g.entropy, &g.largest, &g.first})
    if (static_cast<Index>(figures->size()) != steps * heads)
      bad("figures of ", steps, " steps and ", heads, " heads are ", steps * heads, " numbers, not ",
          figures->size());
}

int least_code_that_fits(std::span<const AttentionMaps> all, Index bytes) {
  std::array<Index, 256> count{};
  Index rows = 0, pairs = 0;
  for (const AttentionMaps& maps : all)
    for (Index l = 0; l < maps.layers(); ++l)
      for (Index h = 0; h < maps.heads[static_cast<std::size_t>(l)]; ++h)
        each_row(maps, l, h, nullptr, [&](Index, std::span<const float> row) {
          ++rows, pairs += static_cast<Index>(row.size());
          for (const float w : row) ++count[weight_code(w)];
        });
  double kept = 0;
  for (int code = 255; code > 0; --code) {
    kept += static_cast<double>(count[static_cast<std::size_t>(code)]);
    // Where weights stand at random, this share of the keys is skipped, so many skips of 15 stand before a
    // weight.
    const double skipped = std::pow(1 - kept / static_cast<double>(pairs), 15);
    const double long_skips = skipped < 1 ? skipped / (1 - skipped) : 0;
    const double most_skips = static_cast<double>(pairs) / 15;
    const double halves = 3 * kept + std::min(kept * long_skips, most_skips);
    if (3 * static_cast<double>(rows) + halves / 2 > static_cast<double>(bytes))
      return std::min(code + 1, 255);
  }
  return 1;
}

PackedMaps pack_maps(const AttentionMaps& maps, int least_code) {
  PackedMaps all;
  for (Index l = 0; l < maps.layers(); ++l) {
    PackedLayer layer;
    for (Index h = 0; h < maps.heads[static_cast<std::size_t>(l)]; ++h) {
      MapFigures sum;
      each_row(maps, l, h, &all, [&](Index i, std::span<const float> row) {
        sum += figures_of(row, i);
        pack_row(row, least_code, layer, all);
      });
      layer.figures.push_back(sum / static_cast<double>(maps.queries.count()));
    }
    all.layers.push_back(std::move(layer));
  }
  all.left_out /= static_cast<double>(std::max<Index>(all.rows, 1));
  return all;
}

}  // namespace headwise
