// Packed keys and KV of 8 bits of the C interface.
#include "headwise/c/guard.h"
#include "headwise/c/handles.h"
#include "headwise/ops/keys/packed_keys.h"
#include "headwise/ops/keys/quantize_kv.h"

namespace headwise::c {

PackedKeys packed_from(const hw_packed_keys* packed, const char* entry) {
  const hw_packed_keys p = sized_copy(packed, entry, "packed");
  return {{p.order_group, p.order_columns, p.order_pad},
          dtype_from(p.dtype, entry, "packed"),
          p.kv_heads,
          p.dim,
          p.capacity,
          p.tokens};
}
void packed_to(const PackedKeys& about, hw_packed_keys* packed, const char* entry) {
  hw_packed_keys p = sized_copy(packed, entry, "packed");
  p.dtype = dtype_to(about.dtype);
  p.kv_heads = about.kv_heads, p.dim = about.dim, p.capacity = about.capacity, p.tokens = about.tokens;
  p.order_group = about.order.group, p.order_columns = about.order.columns, p.order_pad = about.order.pad;
  const std::uint32_t size = packed->struct_size;
  p.struct_size = size;
  std::memcpy(packed, &p, size < sizeof p ? size : sizeof p);
}

}  // namespace headwise::c

using namespace headwise;
using headwise::c::guarded;
using headwise::c::require_given;
using headwise::c::view_of;

hw_status hw_packed_keys_describe(hw_dtype dtype, int64_t kv_heads, int64_t dim, int64_t capacity,
                                  hw_packed_keys* packed) {
  const char* entry = "hw_packed_keys_describe";
  return guarded(entry, [&] {
    require_given(packed, entry, "packed");
    c::packed_to(packed_keys(c::dtype_from(dtype, entry, "packed"), kv_heads, dim, capacity), packed, entry);
  });
}
hw_status hw_packed_keys_room(const hw_packed_keys* packed, int64_t* room) {
  const char* entry = "hw_packed_keys_room";
  return guarded(entry, [&] {
    require_given(room, entry, "room");
    const PackedKeys about = c::packed_from(packed, entry);
    check_packed_keys(entry, about);
    *room = about.room();
  });
}
hw_status hw_pack_keys(hw_context* context, const hw_tensor* k, const hw_tensor* buffer,
                       hw_packed_keys* packed) {
  const char* entry = "hw_pack_keys";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(k, entry, "k");
    require_given(buffer, entry, "buffer");
    PackedKeys about = c::packed_from(packed, entry);
    pack_keys(view_of(k, entry, "k"), view_of(buffer, entry, "buffer"), about, *ContextUse(context, entry));
    c::packed_to(about, packed, entry);
  });
}
hw_status hw_append_keys(hw_context* context, const hw_tensor* k, const hw_tensor* buffer,
                         const hw_tensor* starts, hw_packed_keys* packed) {
  const char* entry = "hw_append_keys";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(k, entry, "k");
    require_given(buffer, entry, "buffer");
    PackedKeys about = c::packed_from(packed, entry);
    append_keys(view_of(k, entry, "k"), view_of(buffer, entry, "buffer"), about, *ContextUse(context, entry),
                view_of(starts, entry, "starts"));
    c::packed_to(about, packed, entry);
  });
}
hw_status hw_unpack_keys(hw_context* context, const hw_tensor* buffer, const hw_packed_keys* packed,
                         const hw_tensor* k) {
  const char* entry = "hw_unpack_keys";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(buffer, entry, "buffer");
    require_given(k, entry, "k");
    unpack_keys(view_of(buffer, entry, "buffer"), c::packed_from(packed, entry), view_of(k, entry, "k"),
                *ContextUse(context, entry));
  });
}
hw_status hw_quantize_kv(hw_context* context, const hw_tensor* x, const hw_tensor* out,
                         const hw_tensor* scale) {
  const char* entry = "hw_quantize_kv";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(x, entry, "x");
    require_given(out, entry, "out");
    require_given(scale, entry, "scale");
    quantize_kv(view_of(x, entry, "x"), view_of(out, entry, "out"), view_of(scale, entry, "scale"),
                *ContextUse(context, entry));
  });
}
