// What communicators of one start share, and checks of what they send. Private to this folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <map>

#include "headwise/distributed/communicator.h"

namespace headwise {

/// What teams of one start share.
struct Communicator::World {
  std::unique_ptr<Engine> engine;
  EngineOptions options;
  Counted counted;
  std::map<int, Index>
      calls_of;  // by a team's tag: how many a rank makes in its other teams is its own affair
  std::string broken;
  std::vector<std::byte> scratch, second;

  /// Lists that calls fill anew: once they have grown, a call allocates nothing.
  Pieces pieces;
  std::vector<Message> messages, made;
  std::vector<Index> ends;
  Pieces& pieces_of(const void* from, void* to) {
    pieces.from = static_cast<const std::byte*>(from), pieces.to = static_cast<std::byte*>(to);
    for (std::vector<Index>* list : {&pieces.send_at, &pieces.send, &pieces.take_at, &pieces.take})
      list->clear();
    return pieces;
  }
  /// Where the ranks' slices of `count` numbers end.
  std::span<const Index> even_ends(Index count, int ranks) {
    ends.clear();
    for (int r = 0; r < ranks; ++r) {
      const Slice s = slice_of(count, r, ranks);
      ends.push_back(s.begin + s.size);
    }
    return ends;
  }
};

/// What every rank must mean alike in one call.
struct Communicator::Card {
  enum Kind : std::int32_t { gathers = 1, sums = 2, adds = 3, trades = 4 };
  std::int32_t kind = 0, dtype = 0;
  Index bytes = 0, number = 0, check = 0x6865616477697365;
};

namespace ranks {

inline constexpr const char* kOp = "ranks";
inline constexpr Index kCheckedCalls = 64;  // calls whose cards are compared without being asked to

inline bool row_major(const AnyView& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    if (v.size[axis] != 1 && v.step[axis] != step) return false;
    step *= v.size[axis];
  }
  return true;
}

inline void check_view(const char* name, const AnyView& v) {
  require(v.given() && v.on_cpu() && row_major(v), ErrorKind::bad_shape, kOp, name, " is ", v,
          "; give a row-major tensor in the memory of the CPU");
}

/// What rank r has of `count` numbers, by where the ranks' pieces end.
inline Slice piece_of(std::span<const Index> ends, int r, int ranks, Index count) {
  const auto at = static_cast<std::size_t>(r);
  require(static_cast<int>(ends.size()) == ranks && ends.back() == count, ErrorKind::bad_argument, kOp,
          "pieces of ", ends.size(), " ranks end at ", ends.empty() ? 0 : ends.back(), " for ", count,
          " numbers over ", ranks, " ranks; give an end for each, the last one the count");
  const Index begin = r == 0 ? 0 : ends[at - 1];
  require(ends[at] >= begin, ErrorKind::bad_argument, kOp, "the piece of rank ", r, " ends at ", ends[at],
          " and begins at ", begin, "; give ends in ascending order");
  return {begin, ends[at] - begin};
}

inline std::byte* sized(std::vector<std::byte>& memory, Index bytes) {
  if (static_cast<Index>(memory.size()) < bytes) memory.resize(static_cast<std::size_t>(bytes));
  return memory.data();
}

inline void copy(void* to, const void* from, Index bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace ranks
}  // namespace headwise
