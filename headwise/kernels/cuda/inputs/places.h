// Place: where one sequence of a run lies in the tensors, as the tiled kernels read it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/band.h"

namespace headwise::cuda {

/// Rows and counts of a sequence; keys at kv_tokens and past it are closed to every query. Of a piece: its
/// first query and key in the sequence, which its positions do not count.
struct Place {
  int batch, q_row, kv_row, q_tokens, kv_tokens, q_start, first_query, first_key;
};

/// A mask of documents cuts a sequence into pieces that do not see each other: the queries before the first
/// document, each document, the queries behind the last one. Each is a sequence of its own to the kernels,
/// with the bits it has alone.
inline Index pieces_of(const Band& band) { return band.documents ? band.documents->n + 2 : 1; }

/// Fits piece `piece` of sequence b and the band's last key into ints. False when a position is too far away.
inline bool place_for(const AttentionProblem& p, const AttentionArgs& a, Index b, Index piece,
                      const Band& band, Place& out) {
  const SequenceLocation s = place_of(p, a, b);
  if (s.q_start < -kFar || s.q_start > kFar || s.q_tokens > kFar || s.kv_tokens > kFar) return false;
  Index q0 = 0, q1 = s.q_tokens, k0 = 0, k1 = min_of(s.kv_tokens, band.keys);
  if (band.documents) {
    const MaskStep& d = *band.documents;
    const auto inside = [](Index x, Index end) { return min_of(max_of(x, 0), end); };
    const bool open = piece > 0 && piece <= d.n;
    if (piece > 0) q0 = inside(d.offsets[piece - 1] - s.q_start, s.q_tokens);
    if (piece <= d.n) q1 = inside(d.offsets[piece] - s.q_start, s.q_tokens);
    k0 = open ? inside(d.offsets[piece - 1], k1) : 0;
    k1 = open ? inside(d.offsets[piece], k1) : 0;
  }
  out = {static_cast<int>(s.tensor_batch),
         static_cast<int>(s.q_row + q0),
         static_cast<int>(s.kv_row + k0),
         static_cast<int>(q1 - q0),
         static_cast<int>(k1 - k0),
         static_cast<int>(s.q_start + q0 - k0),
         static_cast<int>(q0),
         static_cast<int>(k0)};
  return true;
}

/// Gradients on Hopper: where a sequence's rows begin in the run's own buffers is a multiple of this.
inline constexpr int kPaddedRows = 128;
HW_FN constexpr int padded_rows(int rows) { return (rows + kPaddedRows - 1) / kPaddedRows * kPaddedRows; }

/// Every sequence lies alike: one place serves all and no table is needed.
inline bool alike(const AttentionProblem& p, const AttentionArgs& a, const Band& band) {
  return !p.ragged && p.keys != KeyForm::paged && !band.by_length && !band.documents &&
         (!a.q_start.given() || a.q_start.size[0] == 1);
}

/// Rows of all sequences in the run's own buffers.
struct Padded {
  Index q = 0, kv = 0;
};
inline Padded padded_of(const AttentionProblem& p, const AttentionArgs& a) {
  Padded sum;
  Band band;
  const char* part = nullptr;
  band_of(a.mask, 0, band, part);
  const Index pieces = pieces_of(band);
  for (Index b = 0; b < p.batch; ++b) {
    band_of(a.mask, b, band, part);
    for (Index piece = 0; piece < pieces; ++piece) {
      Place at{};
      place_for(p, a, b, piece, band, at);
      sum.q += padded_rows(at.q_tokens), sum.kv += padded_rows(at.kv_tokens);
    }
    if (alike(p, a, band)) return {sum.q * p.batch, sum.kv * p.batch};
  }
  return sum;
}

}  // namespace headwise::cuda
