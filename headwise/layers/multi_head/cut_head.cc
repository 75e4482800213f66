#include "headwise/layers/multi_head/cut_head.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/heads/any_head.h"
#include "headwise/layers/multi_head/head_rows.h"

namespace headwise {
namespace {

/// How a kind of head is cut where it learns.
struct Rule {
  std::string_view kind;
  CutBy by;
};
constexpr Rule kRules[] = {
    {"mha", CutBy::heads},
    {"gqa", CutBy::heads},
    {"entmax", CutBy::heads},
    {"gated", CutBy::leaf_heads},
    {"knocking", CutBy::leaf_heads},
    {"differential", CutBy::leaf_heads},
    {"collaborative", CutBy::leaf_heads},
    {"moh", CutBy::sequences},         // routers choose among all heads
    {"overlapped", CutBy::sequences},  // a head reads columns of its neighbours
    {"talking", CutBy::sequences},     // a pair needs the logits of all heads
    {"dcmha", CutBy::sequences},
    {"segment", CutBy::sequences},  // which heads stop goes by their number
};

CutBy rule_of(const AnyHead& head, const std::string& words) {
  CutBy by = words.find("source=heads") == words.npos ? CutBy::heads : CutBy::sequences;
  for (const AnyHead::Stage& s : head.stages()) {
    const Rule* rule = std::find_if(std::begin(kRules), std::end(kRules),
                                    [&](const Rule& r) { return r.kind == s.table->name; });
    require(rule != std::end(kRules), ErrorKind::unsupported, s.table->name,
            "is not cut over ranks yet; cut the data instead");
    by = std::max(by, rule->by);
  }
  return by;
}

/// The number behind `key` in a head's text, or -1.
Index number_of(std::string_view words, std::string_view key) {
  for (std::size_t at = words.find(key); at != words.npos; at = words.find(key, at + 1)) {
    if (at > 0 && words[at - 1] != ':' && words[at - 1] != ',') continue;
    Index n = -1;
    std::from_chars(words.data() + at + key.size(), words.data() + words.size(), n);
    return n;
  }
  return -1;
}

/// The text with another number behind every `key`.
std::string with_number(std::string words, std::string_view key, Index n) {
  for (std::size_t at = words.find(key); at != words.npos; at = words.find(key, at + key.size())) {
    if (at > 0 && words[at - 1] != ':' && words[at - 1] != ',') continue;
    const std::size_t begin = at + key.size();
    std::size_t end = begin;
    while (end < words.size() && words[end] >= '0' && words[end] <= '9') ++end;
    words.replace(begin, end - begin, text(n));
  }
  return words;
}

/// The most leaves whose kv heads are whole: each leaf has kv heads of its own, or each kv head serves whole
/// leaves.
Index leaves_for(Index heads, Index kv_heads) {
  Index leaves = leaves_of(heads);
  while (kv_heads % leaves != 0 && leaves % kv_heads != 0) leaves /= 2;
  return leaves;
}

}  // namespace

HeadCut cut_head(std::string_view given, const Place& place, int ranks, Order order) {
  HeadCut cut{.words = std::string(given)};
  if (ranks == 1 && order == Order::one_rank) return cut;
  ParamSet scratch = ParamSet::blank();
  const AnyHead head = make_head(given, scratch, place);
  cut.words = head.settings();
  cut.by = rule_of(head, cut.words);
  require(cut.by == CutBy::heads || order != Order::engine, ErrorKind::unsupported, head.name(),
          "shares or mixes what its heads have, and order engine does not add that; take order tree");
  if (cut.by == CutBy::sequences) {
    cut.words = std::string(given);
    require(order != Order::tree || kMostLeaves % ranks == 0, ErrorKind::unsupported, "ranks", head.name(),
            " is cut by sequences in ", kMostLeaves, " leaves, which ", ranks,
            " ranks do not divide; take 1, 2, 4 or 8");
    cut.leaves = order == Order::tree ? kMostLeaves / ranks : 1;
    return cut;
  }
  // Forward in the bits of one rank nothing is added up: heads are heads.
  if (order == Order::one_rank) cut.by = CutBy::heads;
  const std::string first = cut.words.substr(0, cut.words.find('+'));
  cut.heads = number_of(first, "heads=");
  cut.kv_heads = number_of(first, "kv_heads=");
  if (cut.kv_heads <= 0) cut.kv_heads = cut.heads;
  require(cut.heads % ranks == 0, ErrorKind::unsupported, "ranks", cut.heads, " heads cannot be cut over ",
          ranks, " ranks; take a number of ranks that divides them");
  require(cut.kv_heads % ranks == 0 || ranks % cut.kv_heads == 0, ErrorKind::unsupported, "ranks",
          cut.kv_heads, " kv_heads cannot be cut over ", ranks,
          " ranks; take a number of ranks that divides them or is a multiple");
  cut.shared = max_of(1, ranks / cut.kv_heads);
  const Index distinct = max_of(1, cut.kv_heads / ranks);
  if (order == Order::tree) {
    const Index all = leaves_for(cut.heads, cut.kv_heads);
    require(all % ranks == 0, ErrorKind::unsupported, "ranks", cut.heads, " heads make a tree of ", all,
            " leaves, and ", ranks, " ranks do not divide them; take order one_rank, or ", all,
            " ranks or fewer");
    cut.leaves = all / ranks;
    if (cut.by == CutBy::heads) cut.repeats = max_of(cut.kv_heads, all) / ranks / distinct;
  }
  cut.words = with_number(cut.words, "kv_heads=", distinct * cut.repeats);
  cut.words = with_number(cut.words, "heads=", cut.heads / ranks);
  return cut;
}

std::string part_of_heads(std::string_view given, const Place& place, int ranks) {
  ParamSet learned = ParamSet::blank();
  const AnyHead head = make_head(given, learned, place);
  const std::string_view kind = head.stages()[0].table->name;
  const bool plain = head.stages().size() == 1 && learned.all().empty() && !reads_rows(head) &&
                     (kind == "mha" || kind == "gqa" || kind == "entmax");
  const std::string words = head.settings();
  const Index heads = number_of(words, "heads="), kv_heads = number_of(words, "kv_heads=");
  if (!plain || heads % ranks != 0 || (kv_heads > 0 && kv_heads % ranks != 0)) return {};
  return with_number(with_number(words, "kv_heads=", kv_heads / ranks), "heads=", heads / ranks);
}

AnyView repeat_heads(const AnyView& rows, Index dim, Index times, Call& call) {
  const AnyView to = call.memory.take(rows.dtype, {rows.size[0], rows.size[1] * times});
  const Index bytes = dim * size_of(rows.dtype), vectors = rows.count() / max_of(1, dim);
  const auto* from = static_cast<const std::byte*>(rows.data);
  auto* out = static_cast<std::byte*>(to.data);
  for (Index v = 0; v < vectors; ++v)
    for (Index i = 0; i < times; ++i)
      std::memcpy(out + (v * times + i) * bytes, from + v * bytes, static_cast<std::size_t>(bytes));
  return to;
}

AnyView fold_heads(const AnyView& rows, Index dim, Index times, Call& call) {
  const AnyView to = call.memory.take(rows.dtype == DType::f64 ? DType::f64 : DType::f32,
                                      {rows.size[0], rows.size[1] / times});
  const Index vectors = to.count() / max_of(1, dim);
  const auto fold = [&]<class From, class T>(Type<From>, Type<T>) {
    const From* from = static_cast<const From*>(rows.data);
    T* out = static_cast<T*>(to.data);
    call.ctx.pool().parallel_for(ceil_div(vectors, 64), [&](Index task, int) noexcept {
      for (Index v = task * 64; v < min_of(vectors, task * 64 + 64); ++v)
        for (Index d = 0; d < dim; ++d) {
          T sums[kMostLeaves];
          for (Index i = 0; i < times; ++i) sums[i] = static_cast<T>(from[(v * times + i) * dim + d]);
          for (Index width = 1; width < times; width *= 2)
            for (Index i = 0; i < times; i += 2 * width) sums[i] += sums[i + width];
          out[v * dim + d] = sums[0];
        }
    });
  };
  switch (rows.dtype) {
    case DType::f64: fold(Type<double>{}, Type<double>{}); break;
    case DType::bf16: fold(Type<bf16>{}, Type<float>{}); break;
    case DType::f16: fold(Type<f16>{}, Type<float>{}); break;
    default: fold(Type<float>{}, Type<float>{});
  }
  return to;
}

}  // namespace headwise
