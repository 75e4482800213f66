#include "headwise/layers/basic/cut_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/layers/basic/linear.h"
#include "headwise/ops/projection/backward.h"
#include "headwise/ops/row/embedding.h"

namespace headwise {
namespace {

constexpr const char* kOp = "cut vocabulary";
constexpr Index kBlock = 4096;

Index id_at(const AnyView& ids, Index i) {
  return ids.dtype == DType::i64 ? static_cast<const std::int64_t*>(ids.data)[i * ids.step[0]]
                                 : static_cast<const std::int32_t*>(ids.data)[i * ids.step[0]];
}

void check_ids(const char* name, const AnyView& ids) {
  require(ids.rank == 1 && (ids.dtype == DType::i64 || ids.dtype == DType::i32), ErrorKind::bad_shape, kOp,
          name, " is ", ids, "; give i64 or i32 [tokens]");
}

/// What a row's softmax takes from one block of classes.
struct BlockSums {
  double top = 0, sum = 0, all = 0;
};

/// exp(x - top) of the block goes into `to`, where it is given.
BlockSums exp_block(const float* x, Index count, float* to) {
  const cpu::ExpRow r = cpu::chosen_isa().gemm()->rows.exp_row(x, count, to);
  return {static_cast<double>(r.top), r.sum, r.all};
}
BlockSums exp_block(const double* x, Index count, double* to) {
  BlockSums r{.top = -std::numeric_limits<double>::infinity()};
  for (Index i = 0; i < count; ++i)
    if (x[i] > r.top || std::isnan(x[i])) r.top = x[i];
  for (Index i = 0; i < count; ++i) {
    const double e = std::exp(x[i] - r.top);
    r.sum += e, r.all += x[i];
    if (to) to[i] = e;
  }
  return r;
}

}  // namespace

/// One block of classes: where it begins among a rank's, and how many tokens it has.
struct CutVocabulary::Block {
  Index begin = 0, count = 0;
};

/// The ids whose rows this rank has, by their places; and how many each rank has.
struct CutVocabulary::Owned {
  AnyView ids;                             // counted from this rank's first row
  std::vector<std::vector<Index>> places;  // rank by rank
  std::vector<Index> ends;                 // of the numbers of their rows
};

CutVocabulary::CutVocabulary(ParamSet& params, std::string_view name, Index vocabulary, Index model_dim,
                             const Teams& teams)
    : vocabulary_(vocabulary), dim_(model_dim), teams_(&teams) {
  require(vocabulary > 0 && model_dim > 0, ErrorKind::bad_shape, kOp, "got ", vocabulary, " tokens of ",
          model_dim, " numbers; both start at 1");
  require(teams.tensor != nullptr, ErrorKind::bad_argument, kOp,
          "there is no tensor team; give one, of one rank too");
  const int ranks = teams.tensor_ranks();
  require(kMostLeaves % ranks == 0, ErrorKind::unsupported, kOp, "a vocabulary has ", kMostLeaves,
          " leaves, which ", ranks, " ranks do not divide; take 1, 2, 4 or 8");
  const Index rows = round_up(vocabulary, kMostLeaves);
  own_ = slice_of(rows, teams.tensor_rank(), ranks);
  const auto scope = params.scope(name);
  table_ = params.add("table", {own_.size, model_dim},
                      Init::uniform(std::sqrt(6 / static_cast<double>(rows + model_dim))));
}

std::vector<CutVocabulary::Block> CutVocabulary::blocks() const {
  const Index leaf = round_up(vocabulary_, kMostLeaves) / kMostLeaves;
  std::vector<Block> all;
  for (Index first = 0; first < own_.size; first += leaf)
    for (Index at = 0; at < leaf; at += kBlock)
      all.push_back(
          {first + at, min_of(max_of(0, vocabulary_ - own_.begin - first - at), min_of(kBlock, leaf - at))});
  return all;
}

CutVocabulary::Owned CutVocabulary::owned(const InputView& ids, Call& call) const {
  check_ids("ids", ids);
  const int ranks = teams_->tensor_ranks();
  Owned o{.ids = {}, .places = std::vector<std::vector<Index>>(static_cast<std::size_t>(ranks)), .ends = {}};
  for (Index i = 0; i < ids.size[0]; ++i) {
    const Index id = id_at(ids, i);
    require(0 <= id && id < vocabulary_, ErrorKind::bad_argument, kOp, "ids[", i, "] is ", id,
            " but there are ", vocabulary_, " tokens; give 0 to ", vocabulary_ - 1);
    o.places[static_cast<std::size_t>(id / own_.size)].push_back(i);
  }
  Index numbers = 0;
  for (const auto& places : o.places) o.ends.push_back(numbers += static_cast<Index>(places.size()) * dim_);
  const auto& mine = o.places[static_cast<std::size_t>(teams_->tensor_rank())];
  o.ids = call.memory.take(DType::i64, {static_cast<Index>(mine.size())});
  for (std::size_t i = 0; i < mine.size(); ++i)
    static_cast<Index*>(o.ids.data)[i] = id_at(ids, mine[i]) - own_.begin;
  return o;
}

AnyView CutVocabulary::embed(const InputView& ids, Call& call) const {
  check_ids("ids", ids);
  const DType dtype = table_.value().dtype;
  const AnyView y = call.memory.take(dtype, {ids.size[0], dim_});
  const Scratch scratch(call.memory);
  const Owned o = owned(ids, call);
  // Rows in the order of their ranks, then each in its place: selected, never added, so -0 stays -0.
  const AnyView flat = call.memory.take(dtype, {o.ends.back()});
  const auto rank = static_cast<std::size_t>(teams_->tensor_rank());
  const Index width = size_of(dtype), first = rank == 0 ? 0 : o.ends[rank - 1];
  if (o.ids.size[0] > 0)
    embedding(
        table_.value(), o.ids, 1,
        AnyView::packed(static_cast<std::byte*>(flat.data) + first * width, dtype, {o.ids.size[0], dim_}),
        call.ctx);
  teams_->tensor->gather_pieces(flat, o.ends, table_.name());
  const auto* from = static_cast<const std::byte*>(flat.data);
  for (const auto& places : o.places)
    for (const Index place : places) {
      std::memcpy(static_cast<std::byte*>(y.data) + place * dim_ * width, from,
                  static_cast<std::size_t>(dim_ * width));
      from += dim_ * width;
    }
  return y;
}

void CutVocabulary::embed_backward(const InputView& ids, const InputView& dy, Call& call) const {
  if (!table_.grad().given()) return;
  const Scratch scratch(call.memory);
  const Owned o = owned(ids, call);
  if (o.ids.size[0] == 0) return;
  const AnyView own = call.memory.take(dy.dtype, {o.ids.size[0], dim_});
  Index row = 0;
  for (const Index place : o.places[static_cast<std::size_t>(teams_->tensor_rank())]) {
    AnyView from = dy, to = own;
    from.size[0] = to.size[0] = 1;
    from.data = static_cast<std::byte*>(dy.data) + place * dy.step[0] * size_of(dy.dtype);
    to.data = static_cast<std::byte*>(own.data) + row++ * dim_ * size_of(dy.dtype);
    copy_rows(from, to);
  }
  embedding_backward(own, o.ids, 1, table_.grad(), call.ctx);
}

AnyView CutVocabulary::logits(const InputView& rows, Call& call) const {
  const AnyView y = project_rows(rows, table_, {}, call);
  const Index tokens = min_of(own_.size, max_of(0, vocabulary_ - own_.begin));
  for (Index row = 0; row < y.size[0]; ++row)
    for (Index c = tokens; c < own_.size; ++c)
      store_double(y.data, y.dtype, row * own_.size + c, -std::numeric_limits<double>::infinity());
  return y;
}

AnyView CutVocabulary::logits_backward(const InputView& dlogits, const InputView& rows, Call& call) const {
  const LeafProduct product{.x = dlogits, .weight = turned(table_.value())};
  const Index leaves = kMostLeaves / teams_->tensor_ranks();
  const Teams tree{.tensor = teams_->tensor, .order = Order::tree};
  const AnyView dx = sum_leaves({&product, 1}, leaves, {}, call, tree, table_.name());
  if (table_.grad().given())
    projection_backward({.dy = dlogits, .x = rows, .dweight = table_.grad(), .parts = call.training},
                        call.ctx);
  return dx;
}

LossSum CutVocabulary::loss(const InputView& logits, const InputView& labels,
                            const CrossEntropyOptions& options, const AnyView& dlogits, double weight,
                            Call& call) const {
  check_ids("labels", labels);
  const auto row_major = [&](const AnyView& v) {
    return v.rank == 2 && v.size[1] == own_.size && v.step[1] == 1 && v.size[0] == labels.size[0];
  };
  require(row_major(logits) && (!dlogits.given() || (row_major(dlogits) && dlogits.dtype == logits.dtype)),
          ErrorKind::bad_shape, kOp, "logits is ", logits, " and dlogits ", dlogits, " for ", labels,
          "; give [", labels.size[0], " ", own_.size, "] with columns side by side");
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1 && std::isfinite(weight),
          ErrorKind::bad_argument, kOp, "label_smoothing is ", options.label_smoothing, " and weight ",
          weight, "; give 0 to 1, and a finite number");
  for (Index row = 0; row < labels.size[0]; ++row) {
    const Index label = id_at(labels, row);
    require(label == options.ignore || (0 <= label && label < vocabulary_), ErrorKind::bad_argument, kOp,
            "labels[", row, "] is ", label, " but there are ", vocabulary_, " tokens; give 0 to ",
            vocabulary_ - 1, ", or ", options.ignore, " to leave the row out");
  }
  const FloatEnv env;
  return logits.dtype == DType::f64 ? loss_of<double>(logits, labels, options, dlogits, weight, call)
                                    : loss_of<float>(logits, labels, options, dlogits, weight, call);
}

template <class T>
LossSum CutVocabulary::loss_of(const InputView& logits, const InputView& labels, const CrossEntropyOptions& o,
                               const AnyView& dlogits, double weight, Call& call) const {
  const Communicator& team = *teams_->tensor;
  const std::vector<Block> mine = blocks();
  const Index rows = logits.size[0], each = static_cast<Index>(mine.size());
  // A rank's blocks of all rows, and behind them the labels' logits of those it has.
  const Index bytes =
      rows * (each * static_cast<Index>(sizeof(BlockSums)) + static_cast<Index>(sizeof(double)));
  std::vector<std::byte> own(static_cast<std::size_t>(bytes)),
      all(static_cast<std::size_t>(bytes * team.ranks()));
  const auto sums_of = [&](std::byte* of, Index row, Index block) -> BlockSums& {
    return reinterpret_cast<BlockSums*>(of)[row * each + block];
  };
  const auto at_label = [&](std::byte* of, Index row) -> double& {
    return reinterpret_cast<double*>(of + rows * each * static_cast<Index>(sizeof(BlockSums)))[row];
  };
  const auto row_of = [&](const AnyView& v, Index row) { return static_cast<T*>(v.data) + row * v.step[0]; };
  const auto owns = [&](Index label) { return label >= own_.begin && label < own_.begin + own_.size; };
  call.ctx.pool().parallel_for(rows, [&](Index row, int) noexcept {
    const T* x = row_of(logits, row);
    const Index label = id_at(labels, row);
    if (label != o.ignore && owns(label))
      at_label(own.data(), row) = static_cast<double>(x[label - own_.begin]);  // dlogits may be logits
    for (Index b = 0; b < each; ++b) {
      const Block& block = mine[static_cast<std::size_t>(b)];
      if (block.count == 0) continue;
      BlockSums r = exp_block(x + block.begin, block.count,
                              dlogits.given() ? row_of(dlogits, row) + block.begin : nullptr);
      // Classes of -inf alone: exponentials of nothing.
      if (r.top == -std::numeric_limits<double>::infinity()) r.sum = 0;
      sums_of(own.data(), row, b) = r;
    }
  });
  team.gather_bytes(own.data(), all.data(), bytes, "sums of classes");
  std::vector<double> losses(static_cast<std::size_t>(rows));
  const double classes = static_cast<double>(vocabulary_), share = o.label_smoothing / classes;
  call.ctx.pool().parallel_for(rows, [&](Index row, int) noexcept {
    const Index label = id_at(labels, row);
    T* dx = dlogits.given() ? row_of(dlogits, row) : nullptr;
    if (label == o.ignore) {
      if (dx) std::fill_n(dx, own_.size, T{0});
      return;
    }
    BlockSums total{-std::numeric_limits<double>::infinity(), 0, 0};
    const auto each_block = [&](auto&& f) {
      for (int r = 0; r < team.ranks(); ++r)
        for (Index b = 0; b < each; ++b) f(sums_of(all.data() + r * bytes, row, b));
    };
    each_block([&](const BlockSums& s) {
      if (s.sum != 0 && (s.top > total.top || std::isnan(s.top))) total.top = s.top;
    });
    each_block([&](const BlockSums& s) {
      if (s.sum != 0) total.sum += s.sum * std::exp(s.top - total.top);
      total.all += s.all;
    });
    const double lse = total.top + std::log(total.sum),
                 mark = at_label(all.data() + label / own_.size * bytes, row);
    double loss = (1 - o.label_smoothing) * (lse - mark);
    if (o.label_smoothing > 0) loss += o.label_smoothing * lse - share * total.all;
    losses[static_cast<std::size_t>(row)] = loss;
    if (!dx) return;
    for (Index b = 0; b < each; ++b) {
      const Block& block = mine[static_cast<std::size_t>(b)];
      const BlockSums& sums = sums_of(own.data(), row, b);
      const double scale = std::exp(sums.top - total.top) / total.sum;
      if (sums.sum == 0) std::fill_n(dx + block.begin, block.count, T{0});
      const T by = static_cast<T>(weight * scale), shift = static_cast<T>(share * weight);
      const Index at = label - own_.begin - block.begin;
      const bool here = at >= 0 && at < block.count;
      const double p = here ? static_cast<double>(dx[block.begin + at]) * scale : 0;
      for (Index i = 0; i < block.count; ++i) dx[block.begin + i] = dx[block.begin + i] * by - shift;
      if (here) dx[block.begin + at] = static_cast<T>((p - (1 - o.label_smoothing) - share) * weight);
    }
    for (Index c = max_of(0, vocabulary_ - own_.begin); c < own_.size; ++c) dx[c] = 0;
  });
  LossSum sum{.loss = 0, .counted = counted_labels(labels, o.ignore)};
  for (const double one : losses) sum.loss += one;
  return sum;
}

}  // namespace headwise
