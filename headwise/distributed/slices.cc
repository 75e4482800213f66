#include "headwise/distributed/slices.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace headwise {
namespace {

/// A slice as `outer` stretches of `mine` bytes, every `whole` bytes one, from `begin` on.
struct Stretches {
  Index outer = 1, mine = 0, whole = 0, begin = 0;
};
Stretches stretches_of(const AnyView& whole, const AnyView& mine, const SlicePlace& at) {
  Index inner = size_of(whole.dtype), outer = 1;
  if (at.axis < 0) return {1, mine.count() * inner, whole.count() * inner, 0};
  for (int a = 0; a < whole.rank; ++a)
    if (a != at.axis) (a < at.axis ? outer : inner) *= whole.size[a];
  return {outer, mine.size[at.axis] * inner, whole.size[at.axis] * inner, at.begin * inner};
}

}  // namespace

SlicePlace place_of_slice(const std::string& name, const AnyView& whole, const AnyView& mine, int rank,
                          int ranks) {
  SlicePlace at;
  bool fits = whole.rank == mine.rank && whole.dtype == mine.dtype;
  for (int a = 0; fits && a < whole.rank; ++a) {
    const Index all = whole.size[a], own = mine.size[a];
    if (all == own) continue;
    const Slice even = slice_of(all, rank, ranks);
    const bool copies = own > 0 && all % own == 0 && ranks % (all / own) == 0;
    fits = at.axis < 0 && (even.size == own || copies);
    // Where ranks share a slice (kv heads), neighbours hold the same one.
    at = {a, even.size == own || own == 0 ? even.begin : all * rank / ranks / own * own};
  }
  require(fits, ErrorKind::bad_shape, "ranks", name, " is ", whole, " and rank ", rank, " of ", ranks,
          " holds ", mine, "; make both of one config");
  return at;
}

void put_slice(const InputView& mine, const AnyView& whole, const SlicePlace& at) {
  const Stretches s = stretches_of(whole, mine, at);
  for (Index o = 0; o < s.outer && s.mine > 0; ++o)
    std::memcpy(static_cast<std::byte*>(whole.data) + o * s.whole + s.begin,
                static_cast<const std::byte*>(mine.data) + o * s.mine, static_cast<std::size_t>(s.mine));
}

void take_slice(const std::string& name, const AnyView& whole, const AnyView& mine,
                const Communicator& team) {
  const Stretches s = stretches_of(whole, mine, place_of_slice(name, whole, mine, team.rank(), team.ranks()));
  for (Index o = 0; o < s.outer && s.mine > 0; ++o)
    std::memcpy(static_cast<std::byte*>(mine.data) + o * s.mine,
                static_cast<const std::byte*>(whole.data) + o * s.whole + s.begin,
                static_cast<std::size_t>(s.mine));
}

void take_slices(const ParamSet& whole, ParamSet& mine, const Communicator& team) {
  for (Param& to : mine.all()) {
    const auto from = std::find_if(whole.all().begin(), whole.all().end(),
                                   [&](const Param& p) { return p.name == to.name; });
    require(from != whole.all().end(), ErrorKind::bad_argument, "ranks", "the whole model has no ", to.name,
            "; make both of one config");
    take_slice(to.name, from->value, to.value, team);
  }
}

void join_slices(const std::string& name, const AnyView& mine, const AnyView& whole,
                 const Communicator& team) {
  const int ranks = team.ranks();
  // Slices may differ by one row: pieces of one size travel.
  const Index bytes = mine.count() * size_of(mine.dtype);
  std::vector<Index> sizes(static_cast<std::size_t>(ranks));
  team.gather_bytes(&bytes, sizes.data(), sizeof bytes, name);
  const Index most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::byte> padded(static_cast<std::size_t>(most)), all(static_cast<std::size_t>(most * ranks));
  if (bytes > 0) std::memcpy(padded.data(), mine.data, static_cast<std::size_t>(bytes));
  team.gather_bytes(padded.data(), all.data(), most, name);
  for (int r = 0; r < ranks; ++r) {
    AnyView theirs = mine;
    const SlicePlace own = place_of_slice(name, whole, mine, team.rank(), ranks);
    if (own.axis >= 0)
      theirs.size[own.axis] = sizes[static_cast<std::size_t>(r)] / (bytes / mine.size[own.axis]);
    const Stretches s = stretches_of(whole, theirs, place_of_slice(name, whole, theirs, r, ranks));
    for (Index o = 0; o < s.outer; ++o)
      std::memcpy(static_cast<std::byte*>(whole.data) + o * s.whole + s.begin,
                  all.data() + r * most + o * s.mine, static_cast<std::size_t>(s.mine));
  }
}

}  // namespace headwise
