#include "headwise/intent/recognizer/ngrams.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

/// FNV-1a: part of what a model folder means, so it never changes.
class Hash {
 public:
  explicit Hash(std::uint64_t kind) { add(kind); }
  void add(std::uint64_t word) {
    for (int i = 0; i < 8; ++i) step(static_cast<unsigned char>(word >> (8 * i)));
  }
  void add(std::string_view bytes) {
    for (const char c : bytes) step(static_cast<unsigned char>(c));
  }
  Index bucket(Index buckets) const {
    return static_cast<Index>((state_ ^ state_ >> 32) % static_cast<std::uint64_t>(buckets));
  }

 private:
  void step(unsigned char c) { state_ = (state_ ^ c) * 0x100000001b3u; }
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

bool is_special(std::string_view piece) {
  return piece.size() > 2 && piece.front() == '[' && piece.back() == ']';
}
bool goes_on(std::string_view piece) { return piece.size() > 2 && piece.starts_with("##"); }

}  // namespace

Ngrams::Ngrams(ParamSet& params, std::string_view name, const NgramOptions& o, Index dim)
    : options_(o), dim_(o.columns > 0 ? o.columns : dim) {
  require(o.buckets > 0 && dim > 0, ErrorKind::bad_shape, "ngrams", "got ", o.buckets, " buckets of ", dim,
          " columns; both start at 1");
  require(o.pieces >= 1 && o.chars_most >= 0 && (o.chars_most == 0 || o.chars_least >= 1) && o.pieces <= 16 &&
              o.chars_most <= 16,
          ErrorKind::bad_argument, "ngrams", "got pieces up to ", o.pieces, " and characters from ",
          o.chars_least, " to ", o.chars_most, "; pieces go from 1 to 16, characters from 1 to 16");
  const auto scope = params.scope(name);
  // Narrow rows start larger: the matrix behind them makes about the same of them.
  table_ = params.add("table", {o.buckets, dim_}, Init::normal(o.columns > 0 ? 0.1 : 0.02));
  if (o.columns > 0) widen_.emplace(params, "widen", o.columns, dim, LinearOptions{.bias = false});
}

void Ngrams::add_sequence(std::span<const TokenId> ids, const Vocabulary& vocabulary,
                          std::vector<Index>& buckets, std::vector<Index>& offsets) const {
  std::vector<Index> of_word;  // the buckets of the word at hand
  std::vector<std::size_t> starts;
  std::string word;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (Index n = 2; n <= options_.pieces && static_cast<Index>(t) + 1 >= n; ++n) {
      Hash h(static_cast<std::uint64_t>(n));
      for (std::size_t i = t + 1 - static_cast<std::size_t>(n); i <= t; ++i)
        h.add(static_cast<std::uint64_t>(ids[i]));
      buckets.push_back(h.bucket(options_.buckets));
    }
    const std::string& piece = vocabulary.piece(ids[t]);
    if (options_.chars_most > 0 && (t == 0 || !goes_on(piece))) {
      of_word.clear();
      if (!is_special(piece)) {
        word = "<" + (goes_on(piece) ? piece.substr(2) : piece);
        for (std::size_t i = t + 1; i < ids.size() && goes_on(vocabulary.piece(ids[i])); ++i)
          word += vocabulary.piece(ids[i]).substr(2);
        word += '>';
        starts.clear();
        for (Index at = 0; at < static_cast<Index>(word.size()); at = decode_utf8(word, at).end)
          starts.push_back(static_cast<std::size_t>(at));
        starts.push_back(word.size());
        const auto chars = static_cast<Index>(starts.size()) - 1;
        for (Index n = options_.chars_least; n <= min_of(options_.chars_most, chars); ++n)
          for (Index i = 0; i + n <= chars; ++i) {
            const std::size_t begin = starts[static_cast<std::size_t>(i)];
            Hash h(1000);
            h.add(std::string_view(word).substr(begin, starts[static_cast<std::size_t>(i + n)] - begin));
            of_word.push_back(h.bucket(options_.buckets));
          }
      }
    }
    buckets.insert(buckets.end(), of_word.begin(), of_word.end());
    offsets.push_back(static_cast<Index>(buckets.size()));
  }
}

namespace {

/// Side by side on a device, i32: buckets, offsets, then for the gradient the tokens of each bucket in
/// ascending order, where a bucket's begin, and the buckets. `sizes` on the CPU: how many tokens, n-grams and
/// buckets there are.
struct BagLists {
  AnyView lists, sizes;

  const std::int32_t* at(Index place) const { return static_cast<const std::int32_t*>(lists.data) + place; }
  Index size(int i) const { return static_cast<const Index*>(sizes.data)[i]; }
  cuda::BagTask task(Index columns, bool backward) const {
    const Index bags = size(0), count = size(1), runs = size(2), behind = count + bags + 1;
    return {.rows = at(0),
            .offsets = at(count),
            .tokens = at(behind),
            .starts = at(behind + count),
            .runs = at(behind + count + runs + 1),
            .bags = bags,
            .run_count = runs,
            .columns = columns,
            .backward = backward};
  }
};

BagLists lists_there(const std::vector<Index>& buckets, const std::vector<Index>& offsets, Index table_rows,
                     Call& call) {
  const auto bags = static_cast<Index>(offsets.size()) - 1, count = static_cast<Index>(buckets.size());
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  std::vector<std::int32_t> next(at(table_rows) + 1), starts = {0}, runs;
  for (const Index b : buckets) ++next[at(b)];
  std::int32_t begin = 0;
  for (Index b = 0; b < table_rows; ++b) {
    const std::int32_t own = std::exchange(next[at(b)], begin);
    begin += own;
    if (own > 0) starts.push_back(begin), runs.push_back(static_cast<std::int32_t>(b));
  }
  StepMemory& here = call.memory.on(Device::cpu());
  const AnyView lists =
      here.take(DType::i32, {2 * count + bags + 1 + static_cast<Index>(starts.size() + runs.size())});
  auto* to = static_cast<std::int32_t*>(lists.data);
  const auto narrow = [](Index x) { return static_cast<std::int32_t>(x); };
  to = std::transform(buckets.begin(), buckets.end(), to, narrow);
  to = std::transform(offsets.begin(), offsets.end(), to, narrow);
  for (Index t = 0; t < bags; ++t)
    for (Index i = offsets[at(t)]; i < offsets[at(t + 1)]; ++i)
      to[next[at(buckets[at(i)])]++] = static_cast<std::int32_t>(t);
  to = std::copy(starts.begin(), starts.end(), to + count);
  std::copy(runs.begin(), runs.end(), to);
  const AnyView sizes = here.take(DType::i64, {3});
  auto* of = static_cast<Index*>(sizes.data);
  of[0] = bags, of[1] = count, of[2] = static_cast<Index>(runs.size());
  return {headwise::to(lists, call.memory, call.ctx), sizes};
}

}  // namespace

AnyView Ngrams::forward(std::span<const TokenId> ids, const Vocabulary& vocabulary, Call& call,
                        Saved* saved) const {
  const Sequences& s = call.sequences;
  require(static_cast<Index>(ids.size()) == s.rows(), ErrorKind::bad_shape, "ngrams", "got ", ids.size(),
          " ids but the sequences hold ", s.rows(), " rows; give an id for each token");
  std::vector<Index> buckets, offsets = {0};
  for (Index b = 0; b < s.count(); ++b)
    add_sequence(
        ids.subspan(static_cast<std::size_t>(s.at(b)), static_cast<std::size_t>(s.at(b + 1) - s.at(b))),
        vocabulary, buckets, offsets);
  if (const AnyView there = table_.value(); !there.on_cpu()) {
    const BagLists bags = lists_there(buckets, offsets, options_.buckets, call);
    const AnyView y = call.memory.take(there.dtype, {s.rows(), dim_});
    cuda::BagTask task = bags.task(dim_, false);
    task.table = rows_on_device("ngrams", "table", there), task.out = rows_on_device("ngrams", "y", y);
    start(task, there.where(), call.ctx.stream());
    const DropoutOptions dropped = call.next_dropout(options_.dropout);
    if (dropped.p > 0) dropout(y, {}, dropped, y, call.ctx);
    if (saved) *saved = {bags.lists, bags.sizes, dropped, {}};
    return widen_ ? widen_->forward(y, call, saved ? &saved->widen : nullptr) : y;
  }
  const auto keep = [&](const std::vector<Index>& list) {
    const AnyView v = call.memory.take(DType::i64, {static_cast<Index>(list.size())});
    std::copy(list.begin(), list.end(), static_cast<Index*>(v.data));
    return v;
  };
  const AnyView kept = keep(buckets), kept_offsets = keep(offsets);
  const AnyView table = table_.value();
  const Index tokens = s.rows();
  const AnyView y = call.memory.take(table.dtype, {tokens, dim_});
  const FloatEnv env;
  visit_float(table.dtype, [&]<class T>(Type<T>) {
    constexpr Index kGrain = 32;
    call.ctx.pool().parallel_for(ceil_div(tokens, kGrain), [&](Index task, int) noexcept {
      for (Index t = task * kGrain; t < min_of(tokens, (task + 1) * kGrain); ++t) {
        const Index begin = static_cast<const Index*>(kept_offsets.data)[t],
                    end = static_cast<const Index*>(kept_offsets.data)[t + 1];
        const double scale = 1 / std::sqrt(static_cast<double>(max_of(1, end - begin)));
        T* to = static_cast<T*>(y.data) + t * dim_;
        for (Index d0 = 0; d0 < dim_; d0 += cpu::kRowBlock) {
          const Index n = min_of(cpu::kRowBlock, dim_ - d0);
          double sum[cpu::kRowBlock] = {};
          for (Index i = begin; i < end; ++i) {
            const T* row =
                static_cast<const T*>(table.data) + static_cast<const Index*>(kept.data)[i] * dim_ + d0;
            for (Index d = 0; d < n; ++d) sum[d] += cpu::widen(row[d]);
          }
          for (Index d = 0; d < n; ++d) to[d0 + d] = cpu::narrow<T>(scale * sum[d]);
        }
      }
    });
  });
  const DropoutOptions dropped = call.next_dropout(options_.dropout);
  if (dropped.p > 0) dropout(y, {}, dropped, y, call.ctx);
  if (saved) *saved = {kept, kept_offsets, dropped, {}};
  return widen_ ? widen_->forward(y, call, saved ? &saved->widen : nullptr) : y;
}

void Ngrams::backward(const AnyView& dy, Call& call, const Saved& saved) const {
  const AnyView grad = table_.grad();
  if (!grad.given()) return;
  const Scratch scratch(call.memory);
  const AnyView dbag = widen_ ? widen_->backward(dy, call, saved.widen) : dy;
  AnyView slope = dbag;
  if (saved.dropout.p > 0) {
    slope = call.memory.take(dbag.dtype, {dbag.size[0], dbag.size[1]});
    dropout_backward(dbag, saved.dropout, slope, call.ctx);
  }
  if (!grad.on_cpu()) {
    cuda::BagTask task = BagLists{saved.buckets, saved.offsets}.task(dim_, true);
    task.table = rows_on_device("ngrams", "the table's gradient", grad);
    task.out = rows_on_device("ngrams", "dy", slope);
    return start(task, grad.where(), call.ctx.stream());
  }
  const auto* buckets = static_cast<const Index*>(saved.buckets.data);
  const auto* offsets = static_cast<const Index*>(saved.offsets.data);
  const FloatEnv env;
  visit_float(dy.dtype, [&]<class T>(Type<T>) {
    // A row of the table belongs to one task, which adds its tokens in ascending order whatever the threads.
    constexpr Index kTasks = 16;
    call.ctx.pool().parallel_for(kTasks, [&](Index task, int) noexcept {
      for (Index t = 0; t < slope.size[0]; ++t) {
        const Index begin = offsets[t], end = offsets[t + 1];
        const double scale = 1 / std::sqrt(static_cast<double>(max_of(1, end - begin)));
        const T* from = static_cast<const T*>(slope.data) + t * slope.step[0];
        for (Index i = begin; i < end; ++i) {
          if (buckets[i] % kTasks != task) continue;
          T* to = static_cast<T*>(grad.data) + buckets[i] * dim_;
          for (Index d = 0; d < dim_; ++d)
            to[d] = cpu::narrow<T>(cpu::widen(to[d]) + scale * cpu::widen(from[d]));
        }
      }
    });
  });
}

}  // namespace headwise
