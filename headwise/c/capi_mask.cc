// Masks of the C interface: builders, text, the definition.
#include <new>
#include <vector>

#include "headwise/c/guard.h"
#include "headwise/c/handles.h"

namespace {

using headwise::ErrorKind;
using headwise::Index;
using headwise::Mask;
using headwise::require;
using headwise::c::guarded;
using headwise::c::require_given;

std::span<const Index> array(const std::int64_t* data, std::size_t count, const char* entry,
                             const char* what) {
  if (count > 0) require_given(data, entry, what);
  return {data, count};
}

template <class F>
hw_status build(const char* entry, hw_mask** mask, F&& make) noexcept {
  return guarded(entry, [&] {
    require_given(mask, entry, "mask");
    *mask = new hw_mask{make()};
  });
}

const Mask& value(const hw_mask* mask, const char* entry, const char* what) {
  require_given(mask, entry, what);
  return mask->mask;
}

}  // namespace

hw_status hw_mask_parse(const char* text, hw_mask** mask) {
  return build("hw_mask_parse", mask, [&] {
    require_given(text, "hw_mask_parse", "text");
    return headwise::parse_mask(text);
  });
}
hw_status hw_mask_all(hw_mask** mask) {
  return build("hw_mask_all", mask, [] { return Mask::all(); });
}
hw_status hw_mask_causal(hw_mask** mask) {
  return build("hw_mask_causal", mask, [] { return Mask::causal(); });
}
hw_status hw_mask_window(int64_t back, int64_t ahead, hw_mask** mask) {
  return build("hw_mask_window", mask, [&] { return Mask::window(back, ahead); });
}
hw_status hw_mask_sliding(int64_t width, hw_mask** mask) {
  return build("hw_mask_sliding", mask, [&] { return Mask::sliding(width); });
}
hw_status hw_mask_prefix(int64_t keys, hw_mask** mask) {
  return build("hw_mask_prefix", mask, [&] { return Mask::prefix(keys); });
}
hw_status hw_mask_lengths(const int64_t* lengths, size_t count, hw_mask** mask) {
  const char* entry = "hw_mask_lengths";
  return build(entry, mask, [&] { return Mask::lengths(array(lengths, count, entry, "lengths")); });
}
hw_status hw_mask_documents(const int64_t* offsets, size_t count, hw_mask** mask) {
  const char* entry = "hw_mask_documents";
  return build(entry, mask, [&] { return Mask::documents(array(offsets, count, entry, "offsets")); });
}
hw_status hw_mask_blocks(int64_t q_block, int64_t kv_block, const int64_t* rows, size_t row_count,
                         const int64_t* columns, size_t column_count, hw_mask** mask) {
  const char* entry = "hw_mask_blocks";
  return build(entry, mask, [&] {
    return Mask::blocks(q_block, kv_block, array(rows, row_count, entry, "rows"),
                        array(columns, column_count, entry, "columns"));
  });
}
hw_status hw_mask_strided(int64_t stride, int64_t width, hw_mask** mask) {
  return build("hw_mask_strided", mask, [&] { return Mask::strided(stride, width); });
}
hw_status hw_mask_global(const int64_t* positions, size_t count, hw_mask** mask) {
  const char* entry = "hw_mask_global";
  return build(entry, mask, [&] { return Mask::global(array(positions, count, entry, "positions")); });
}
hw_status hw_mask_dense(const hw_tensor* open, hw_mask** mask) {
  return build("hw_mask_dense", mask, [&] {
    require_given(open, "hw_mask_dense", "open");
    return Mask::dense(headwise::c::view_of(open, "hw_mask_dense", "open"));
  });
}
hw_status hw_mask_from_blocked(const hw_tensor* blocked, hw_mask** mask) {
  return build("hw_mask_from_blocked", mask, [&] {
    require_given(blocked, "hw_mask_from_blocked", "blocked");
    return Mask::from_blocked(headwise::c::view_of(blocked, "hw_mask_from_blocked", "blocked"));
  });
}
hw_status hw_mask_per_head(const hw_mask* const* masks, size_t count, hw_mask** mask) {
  const char* entry = "hw_mask_per_head";
  return build(entry, mask, [&] {
    if (count > 0) require_given(masks, entry, "masks");
    std::vector<Mask> copies;
    for (std::size_t i = 0; i < count; ++i) {
      require(masks[i] != nullptr, ErrorKind::bad_argument, entry, "masks[", i,
              "] is NULL; give one mask for each of the ", count, " heads");
      copies.push_back(masks[i]->mask);
    }
    return Mask::per_head(copies);
  });
}
hw_status hw_mask_and(const hw_mask* a, const hw_mask* b, hw_mask** mask) {
  const char* entry = "hw_mask_and";
  return build(entry, mask, [&] {
    const Mask &left = value(a, entry, "a"), &right = value(b, entry, "b");
    return left & right;
  });
}
hw_status hw_mask_or(const hw_mask* a, const hw_mask* b, hw_mask** mask) {
  const char* entry = "hw_mask_or";
  return build(entry, mask, [&] {
    const Mask &left = value(a, entry, "a"), &right = value(b, entry, "b");
    return left | right;
  });
}
void hw_mask_destroy(hw_mask* mask) { delete mask; }

hw_status hw_mask_may_attend(const hw_mask* mask, int64_t q, int64_t k, const hw_mask_place* place,
                             int32_t* open) {
  const char* entry = "hw_mask_may_attend";
  return guarded(entry, [&] {
    const Mask& m = value(mask, entry, "mask");
    require_given(open, entry, "open");
    require(k >= 0, ErrorKind::bad_argument, entry, "k is ", k, "; key positions start at 0");
    headwise::MaskSubject at;
    if (place != nullptr) {
      const hw_mask_place p = headwise::c::sized_copy(place, entry, "place");
      at = {.sequence = p.sequence, .head = p.head, .q_start = p.q_start};
    }
    *open = m.may_attend(q, k, at) ? 1 : 0;
  });
}
hw_status hw_mask_text(const hw_mask* mask, char* buffer, size_t capacity, size_t* length) {
  const char* entry = "hw_mask_text";
  return guarded(entry, [&] {
    headwise::c::copy_text(headwise::to_text(value(mask, entry, "mask")), buffer, capacity, length, entry);
  });
}
