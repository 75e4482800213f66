// Dense masks: a byte a pair packed to a bit a pair, whatever the steps of the tensor.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>
#include <new>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

/// Eight neighbouring bytes as eight bits: each byte's "is not 0" moves to bit 0, one product gathers them at
/// the top.
std::uint64_t eight_bits(const std::uint8_t* bytes) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f, ones = 0x0101010101010101;
  std::uint64_t x;
  std::memcpy(&x, bytes, 8);
  const std::uint64_t is = ((((x & low) + low) | x) >> 7) & ones;
  return is * 0x0102040810204080 >> 56;
}

void pack_row(const std::uint8_t* row, Index step, Index keys, std::uint64_t flip, std::uint64_t* words) {
  for (Index w = 0; w < ceil_div(keys, 64); ++w) {
    const Index n = min_of(64, keys - 64 * w);
    const std::uint8_t* from = row + 64 * w * step;
    std::uint64_t bits = 0;
    Index j = 0;
    if (step == 1)
      for (; j + 8 <= n; j += 8) bits |= eight_bits(from + j) << j;
    for (; j < n; ++j) bits |= std::uint64_t{from[j * step] != 0} << j;
    words[w] = (bits ^ flip) & mask_terms::bits_between(0, n);
  }
}

}  // namespace

Mask Mask::packed(const InputView& tensor, std::string_view name, bool blocked) {
  require(tensor.dtype == DType::u8, ErrorKind::bad_dtype, "mask", name, " takes u8, got ", tensor,
          "; compare the values first, so that non-zero means ", blocked ? "blocked" : "open");
  require(tensor.rank >= 2 && tensor.rank <= 4, ErrorKind::bad_shape, "mask", name,
          " takes [q kv], [heads q kv] or [batch heads q kv], got ", tensor);
  MaskStep s{.op = MaskOp::dense};
  Index step[4] = {}, kept[3];  // kept: rows that differ; a size of 1 or a step of 0 repeats one
  for (int axis = 0; axis < 4; ++axis) {
    const int from = axis - (4 - tensor.rank);
    s.size[axis] = from < 0 ? 1 : tensor.size[from];
    step[axis] = from < 0 ? 0 : tensor.step[from];
    require(s.size[axis] >= 0 && step[axis] >= 0, ErrorKind::bad_shape, "mask", name, " has size ",
            s.size[axis], " and step ", step[axis], "; both must be 0 or more");
    if (axis < 3) kept[axis] = step[axis] == 0 ? min_of(s.size[axis], 1) : s.size[axis];
  }
  const Index row_words = ceil_div(s.size[3], 64);
  const Checked all_words = Checked(kept[0]) * kept[1] * kept[2] * row_words;
  require((all_words * Checked(8)).ok, ErrorKind::bad_shape, "mask", name, ' ', tensor,
          " needs more words than an Index holds");
  require(tensor.data != nullptr || all_words.value == 0, ErrorKind::bad_argument, "mask", name, ' ', tensor,
          " has no data; pass its address");
  const Index words[3] = {kept[1] * kept[2] * row_words, kept[2] * row_words, row_words};
  for (int axis = 0; axis < 3; ++axis) s.words[axis] = kept[axis] == 1 ? 0 : words[axis];

  Mask m;
  try {
    m.bits_.resize(static_cast<std::size_t>(all_words.value));
  } catch (const std::exception&) {
    throw Error(ErrorKind::out_of_memory,
                text("mask: ", name, ' ', tensor, " needs ", 8 * all_words.value,
                     " bytes that are not there; use terms such as causal or blocks"));
  }
  const auto* data = static_cast<const std::uint8_t*>(tensor.data);
  std::uint64_t* out = m.bits_.data();
  if (all_words.value > 0)
    for (Index b = 0; b < kept[0]; ++b)
      for (Index h = 0; h < kept[1]; ++h)
        for (Index i = 0; i < kept[2]; ++i, out += row_words)
          pack_row(data + b * step[0] + h * step[1] + i * step[2], step[3], s.size[3],
                   blocked ? ~std::uint64_t{0} : 0, out);
  s.bits = m.bits_.data();
  m.views_ = {MaskView::one(s)};
  return m;
}

Mask Mask::dense(const InputView& open) { return packed(open, "dense", false); }
Mask Mask::from_blocked(const InputView& blocked) { return packed(blocked, "from_blocked", true); }

}  // namespace headwise
