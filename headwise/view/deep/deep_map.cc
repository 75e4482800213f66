#include "headwise/view/deep/deep_map.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/error.h"

namespace headwise {
namespace {

constexpr std::size_t kKept = 3;  // heads with their pyramids
constexpr double kDearest = 8e9;  // multiplications of one tile that are done while somebody waits
constexpr int kNiceness = 10;     // of threads that build
constexpr Index kTile = DeepTile::kTile;
using Clock = std::chrono::steady_clock;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

void keep_top(std::vector<std::pair<Index, float>>& top, std::size_t most) {
  const auto heavier = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  if (top.size() > most) {
    std::nth_element(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(most), top.end(), heavier);
    top.resize(most);
  }
  std::sort(top.begin(), top.end(), heavier);
}

void add_to(DeepLine& line, Index place, Index places, float w) {
  const std::size_t bin = at(place * static_cast<Index>(line.bins.size()) / places);
  line.bins[bin] = std::max(line.bins[bin], w);
  line.sum += static_cast<double>(w);
  if (w > 0) line.top.emplace_back(place, w);
}

}  // namespace

struct DeepMap::Head {
  Head(const QkSource& source, Index layer_, Index head_)
      : layer(layer_), head(head_), rows(source, layer_, head_), pyramid(source) {}
  Index layer, head;
  HeadRows rows;
  MapPyramid pyramid;
  std::atomic<bool> wanted{false}, raised{false};  // raised: blocks above 256 are exact
  std::atomic<Index> next{0};                      // band to fill
  int busy = 0;                                    // threads at it; under lock_
  bool joined = false;                             // all sums are in; under lock_
  Clock::time_point begun;
  double seconds = 0;
};

DeepMap::DeepMap(QkSource source, int threads) : source_(std::move(source)), ctx_({.threads = threads}) {
  for (int t = 0; t < ctx_.threads(); ++t) builders_.emplace_back([this] { build(); });
}

DeepMap::~DeepMap() {
  {
    const std::lock_guard guard(lock_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : builders_) t.join();
}

const QkSource& DeepMap::source() const { return source_; }

Index DeepMap::largest_block() const {
  Index block = MapPyramid::kBand;
  while ((source_.q_tokens + block - 1) / block > 64 || (source_.kv_tokens + block - 1) / block > 64)
    block *= 2;
  return block;
}

/// The head as it is kept; made when it is not there. Under work_.
std::shared_ptr<DeepMap::Head> DeepMap::head_of(Index layer, Index head) {
  require(
      layer >= 0 && layer < static_cast<Index>(source_.layers.size()) && head >= 0 && head < source_.heads,
      ErrorKind::bad_argument, "view", "layer ", layer, ", head ", head, "; there are ",
      source_.layers.size(), " layers of ", source_.heads, " heads, counted from 0");
  std::shared_ptr<Head> found;
  {
    const std::lock_guard guard(lock_);
    const auto place = std::find_if(heads_.begin(), heads_.end(),
                                    [&](const auto& h) { return h->layer == layer && h->head == head; });
    if (place != heads_.end()) {
      found = *place;
      heads_.splice(heads_.begin(), heads_, place);
    }
  }
  if (found) return found;
  found = std::make_shared<Head>(source_, layer, head);
  const std::lock_guard guard(lock_);
  heads_.push_front(found);
  while (heads_.size() > kKept) heads_.pop_back();
  return found;
}

void DeepMap::open(Index layer, Index head) {
  const std::lock_guard working(work_);
  const auto h = head_of(layer, head);
  if (h->wanted) return;
  h->pyramid.sample(h->rows, ctx_);
  h->pyramid.raise();
  {
    const std::lock_guard guard(lock_);
    h->begun = Clock::now(), h->wanted = true;
  }
  changed_.notify_all();
}

/// A builder: bands of the head looked at last, one after another.
void DeepMap::build() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
  HeadRows::Worker worker(source_.head_dim);
  std::shared_ptr<Head> at_work;
  std::optional<MapPyramid::Scratch> scratch;
  const auto leave = [&] {  // under lock_
    if (!at_work) return;
    at_work->pyramid.join(*scratch);
    scratch.reset();
    if (--at_work->busy == 0 && at_work->pyramid.whole() && !at_work->joined) {
      at_work->pyramid.raise();
      at_work->joined = true, at_work->raised = true;
      at_work->seconds = std::chrono::duration<double>(Clock::now() - at_work->begun).count();
      changed_.notify_all();
    }
    at_work.reset();
  };
  for (;;) {
    {
      std::unique_lock guard(lock_);
      const auto next = [&]() -> std::shared_ptr<Head> {
        for (const auto& h : heads_)
          if (h->wanted && h->next < h->pyramid.bands()) return h;
        return {};
      };
      std::shared_ptr<Head> h = next();
      if (h != at_work) leave();
      changed_.wait(guard, [&] { return ending_ || (h = next()) != nullptr; });
      if (ending_) return leave();
      if (h != at_work) at_work = h, ++h->busy, scratch.emplace(h->pyramid);
    }
    const Index band = at_work->next++;
    if (band < at_work->pyramid.bands()) at_work->pyramid.fill_band(band, at_work->rows, worker, *scratch);
  }
}

DeepMap::Progress DeepMap::progress(Index layer, Index head) {
  const std::lock_guard working(work_);
  const auto h = head_of(layer, head);
  const std::lock_guard guard(lock_);
  Progress p{.bands = h->pyramid.bands(),
             .done = h->pyramid.bands_done(),
             .seconds = h->seconds,
             .exact = h->joined};
  if (h->wanted && !h->joined) p.seconds = std::chrono::duration<double>(Clock::now() - h->begun).count();
  return p;
}

void DeepMap::finish(Index layer, Index head) {
  open(layer, head);
  std::shared_ptr<Head> h;
  {
    const std::lock_guard working(work_);
    h = head_of(layer, head);
  }
  std::unique_lock guard(lock_);
  changed_.wait(guard, [&] { return h->joined; });
}

/// From the pyramid; sampled where a band of it is not done.
DeepTile DeepMap::kept_tile(Head& h, const TilePlace& p) const {
  DeepTile t;
  const auto held = h.pyramid.hold();
  std::size_t level = 0;
  const auto& levels = h.pyramid.levels();
  while (level < levels.size() && levels[level].block != p.block) ++level;
  if (level == levels.size()) return t;
  const PyramidLevel& l = levels[level];
  const Index r0 = p.row * kTile, c0 = p.column * kTile;
  bool exact = true;
  for (Index i = r0; i < std::min(l.rows, r0 + kTile); ++i) {
    const Index from = i * p.block / MapPyramid::kBand, to = ((i + 1) * p.block - 1) / MapPyramid::kBand;
    for (Index band = from; band <= to && band < h.pyramid.bands(); ++band)
      exact = exact && h.pyramid.done(band);
  }
  if (p.block > MapPyramid::kBand) exact = exact && h.raised;
  if (!exact && p.block < MapPyramid::kBand) return t;
  t.state = exact ? DeepTile::State::exact : DeepTile::State::sampled;
  t.max.assign(at(kTile * kTile), 0), t.mean = t.max;
  for (Index i = r0; i < std::min(l.rows, r0 + kTile); ++i) {
    const Index wide = std::min(l.columns, c0 + kTile) - c0;
    if (wide <= 0) break;
    const auto from = static_cast<std::ptrdiff_t>(i * l.columns + c0),
               to = static_cast<std::ptrdiff_t>((i - r0) * kTile);
    std::copy_n(l.max.begin() + from, wide, t.max.begin() + to);
    std::copy_n(l.mean.begin() + from, wide, t.mean.begin() + to);
  }
  return t;
}

/// Recomputed from queries and keys, 64 rows a task.
DeepTile DeepMap::computed_tile(Head& h, const TilePlace& p) {
  const Index r0 = p.row * kTile * p.block, c0 = p.column * kTile * p.block;
  const Index r1 = std::min(source_.q_tokens, r0 + kTile * p.block),
              c1 = std::min(source_.kv_tokens, c0 + kTile * p.block);
  DeepTile t;
  if (r0 >= r1 || c0 >= c1) return t;
  const auto number = [](Index n) { return static_cast<double>(n); };
  const double cost =
      number(source_.head_dim) * (number(r1 - r0) * number(c1 - c0 + HeadRows::kKeys) +
                                  number(h.rows.rows_without_lse({r0, r1 - r0})) * number(source_.kv_tokens));
  if (cost > kDearest) return t;
  t.state = DeepTile::State::exact;
  t.max.assign(at(kTile * kTile), 0), t.mean = t.max;
  std::vector<float> max(at(kTile * kTile), 0), sum = max, open = max;
  std::vector<HeadRows::Worker> workers;
  for (int w = 0; w < ctx_.threads(); ++w) workers.emplace_back(source_.head_dim);
  const Index rows = HeadRows::kRows;  // whole cells: blocks here are at most 64 and divide it
  ctx_.pool().parallel_for((r1 - r0 + rows - 1) / rows, [&](Index task, int w) {
    const RowSet set{r0 + task * rows, std::min(rows, r1 - r0 - task * rows)};
    h.rows.fill_lse(set, workers[static_cast<std::size_t>(w)]);
    h.rows.each_strip(set, c0, c1, workers[static_cast<std::size_t>(w)], [&](const WeightStrip& s) {
      for (Index i = 0; i < set.count; ++i) {
        const Index cell_row = (set.at(i) - r0) / p.block * kTile;
        const Index from = std::max(c0, s.begin), to = std::min(c1, s.end);
        for (Index j = from; j < to; ++j) {
          const std::size_t cell = at(cell_row + (j - c0) / p.block);
          const float x = s.row(i)[j - s.begin];
          max[cell] = std::max(max[cell], x), sum[cell] += x;
        }
        for (Index j = from; j < to; j += p.block)
          open[at(cell_row + (j - c0) / p.block)] +=
              static_cast<float>(s.open(source_, set.at(i), set.at(i) + 1, j, std::min(to, j + p.block)));
      }
    });
  });
  for (std::size_t c = 0; c < max.size(); ++c) {
    t.max[c] = quick_code(max[c]);
    t.mean[c] = open[c] > 0 ? quick_code(sum[c] / open[c]) : 0;
  }
  return t;
}

DeepTile DeepMap::tile(Index layer, Index head, const TilePlace& p) {
  require(p.block >= 1 && p.block <= largest_block() && (p.block & (p.block - 1)) == 0 && p.row >= 0 &&
              p.column >= 0,
          ErrorKind::bad_argument, "view", "a tile of blocks of ", p.block, " at ", p.row, ", ", p.column,
          "; blocks are powers of two up to ", largest_block());
  const std::lock_guard working(work_);
  const auto h = head_of(layer, head);
  if (p.block >= MapPyramid::kBase)
    if (DeepTile kept = kept_tile(*h, p); kept.state != DeepTile::State::none) return kept;
  return p.block <= HeadRows::kRows ? computed_tile(*h, p) : DeepTile{};
}

std::vector<float> DeepMap::weights(Index layer, Index head, const RowSet& rows, Index begin, Index end) {
  require(rows.first >= 0 && rows.count >= 1 && rows.step >= 1 && rows.end() <= source_.q_tokens &&
              begin >= 0 && begin < end && end <= source_.kv_tokens,
          ErrorKind::bad_argument, "view", "rows ", rows.first, " to ", rows.end(), " and keys ", begin,
          " to ", end, "; there are ", source_.q_tokens, " queries and ", source_.kv_tokens, " keys");
  const std::lock_guard working(work_);
  const auto h = head_of(layer, head);
  const Index wide = end - begin;
  std::vector<float> out(at(rows.count * wide), 0.0f);
  std::vector<HeadRows::Worker> workers;
  for (int w = 0; w < ctx_.threads(); ++w) workers.emplace_back(source_.head_dim);
  ctx_.pool().parallel_for((rows.count + HeadRows::kRows - 1) / HeadRows::kRows, [&](Index task, int w) {
    const Index first = task * HeadRows::kRows;
    const RowSet set{rows.at(first), std::min(HeadRows::kRows, rows.count - first), rows.step};
    h->rows.fill_lse(set, workers[static_cast<std::size_t>(w)]);
    h->rows.each_strip(set, begin, end, workers[static_cast<std::size_t>(w)], [&](const WeightStrip& s) {
      const Index from = std::max(begin, s.begin), to = std::min(end, s.end);
      for (Index i = 0; i < set.count; ++i)
        std::copy_n(s.row(i) + (from - s.begin), to - from,
                    out.begin() + static_cast<std::ptrdiff_t>((first + i) * wide + from - begin));
    });
  });
  return out;
}

DeepLine DeepMap::row_line(Index layer, Index head, Index row, Index bins, Index top) {
  const std::vector<float> w = weights(layer, head, {row, 1}, 0, source_.kv_tokens);
  DeepLine line{.ready = true,
                .bins = std::vector<float>(at(std::clamp<Index>(bins, 1, source_.kv_tokens))),
                .top = {}};
  for (Index j = 0; j < source_.kv_tokens; ++j) add_to(line, j, source_.kv_tokens, w[at(j)]);
  keep_top(line.top, at(top));
  return line;
}

DeepLine DeepMap::column_line(Index layer, Index head, Index column, Index bins, Index top) {
  DeepLine line;
  {
    const std::lock_guard working(work_);
    const auto h = head_of(layer, head);
    const double cost = static_cast<double>(h->rows.rows_without_lse({0, source_.q_tokens})) *
                        static_cast<double>(source_.kv_tokens) * static_cast<double>(source_.head_dim);
    if (cost > kDearest) return line;
  }
  line.ready = true;
  line.bins.resize(at(std::clamp<Index>(bins, 1, source_.q_tokens)));
  const std::vector<float> w = weights(layer, head, {0, source_.q_tokens}, column, column + 1);
  for (Index i = 0; i < source_.q_tokens; ++i) add_to(line, i, source_.q_tokens, w[at(i)]);
  keep_top(line.top, at(top));
  return line;
}

template <class Sums>
std::vector<float> DeepMap::whole_sums(Index layer, Index head, const Sums& sums) {
  const std::lock_guard working(work_);
  const auto h = head_of(layer, head);
  const std::lock_guard guard(lock_);
  std::vector<float> out;
  if (h->joined) sums(h->pyramid, out);
  return out;
}

std::vector<float> DeepMap::by_distance(Index layer, Index head) {
  return whole_sums(layer, head, [&](const MapPyramid& pyramid, std::vector<float>& out) {
    const Index n = source_.q_tokens, m = source_.kv_tokens, start = source_.terms.q_start;
    for (Index back = 0; back < n + start; ++back) {
      // Index i - j of the sums; queries whose key `back` behind them exists.
      const Index d = back - start, first = std::max<Index>(0, d), end = std::min(n, m + d);
      const bool some = d + m - 1 >= 0 && d < n && end > first;
      const double sum = some ? static_cast<double>(pyramid.diagonals()[at(d + m - 1)]) * kSumStep : 0;
      out.push_back(some ? static_cast<float>(sum / static_cast<double>(end - first)) : 0.0f);
    }
  });
}

std::vector<float> DeepMap::column_sums(Index layer, Index head) {
  return whole_sums(layer, head, [](const MapPyramid& pyramid, std::vector<float>& out) {
    for (const std::int64_t s : pyramid.columns())
      out.push_back(static_cast<float>(static_cast<double>(s) * kSumStep));
  });
}

}  // namespace headwise
