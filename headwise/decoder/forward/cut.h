// What a rank of a tensor team has of a decoder: heads with their keys and values, and rows of every matrix.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/decoder/files/config.h"
#include "headwise/distributed/communicator.h"

#pragma GCC visibility push(default)
namespace headwise {

/// team null: all of it.
struct DecoderCut {
  const Communicator* team = nullptr;

  int ranks() const { return team ? team->ranks() : 1; }
  Slice of(Index whole) const { return slice_of(whole, team ? team->rank() : 0, ranks()); }
  Slice heads(const DecoderConfig& c) const { return of(c.heads); }
  /// Where there are fewer than ranks, neighbours have the same one.
  Slice kv_heads(const DecoderConfig& c) const {
    if (c.kv_heads >= ranks()) return of(c.kv_heads);
    return {c.kv_heads * team->rank() / ranks(), 1};
  }
};

}  // namespace headwise
#pragma GCC visibility pop
