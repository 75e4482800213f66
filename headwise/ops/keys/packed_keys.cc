#include "headwise/ops/keys/packed_keys.h"

#include <cstring>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/isa/key_order.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

bool packs(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::i8 || t == DType::e4m3;
}

void check_buffer(const char* op, const AnyView& buffer, const PackedKeys& about, Index batch) {
  check_packed_keys(op, about);
  const bool fits = buffer.rank == 3 && buffer.dtype == about.dtype && buffer.size[0] == batch &&
                    buffer.size[1] == about.kv_heads && buffer.size[2] == about.room();
  require(fits, ErrorKind::bad_shape, op, "the buffer is ", buffer, " but ", about.dtype, " [", batch, " ",
          about.kv_heads, " ", about.room(), "] is needed, [batch kv_heads room]");
  check_memory(op, "the buffer", buffer);
  require(buffer.step[2] == 1 || about.room() <= 1, ErrorKind::bad_shape, op, "the buffer has step ",
          buffer.step[2], " in its last axis; a head's room lies in one piece");
}
void check_keys(const char* op, const AnyView& k, const PackedKeys& about) {
  const bool fits =
      k.rank == 4 && k.dtype == about.dtype && k.size[2] == about.kv_heads && k.size[3] == about.dim;
  require(fits, ErrorKind::bad_shape, op, "k is ", k, " but ", about.dtype, " [batch tokens ", about.kv_heads,
          " ", about.dim, "] is needed, [batch tokens kv_heads dim]");
  check_memory(op, "k", k);
}

/// Copies tokens of one head between a strided k and its room; `to_room` says which way. Columns that lie
/// together in the room are moved together.
template <class T>
struct MoveTask {
  T *room, *k;
  Index tokens, first;  // of k, and where its first one lies in the room
  Index token_step, column_step;
};
template <class T>
void move_tokens(const PackedKeys& about, const MoveTask<T>& task, bool to_room) {
  const auto [room, k, tokens, first, token_step, column_step] = task;
  const KeyOrder& order = about.order;
  for (Index t = 0; t < tokens; ++t)
    for (Index d = 0; d < about.dim; d += order.columns) {
      T* lies = room + order.at(first + t, d, about.dim);
      T* from = k + t * token_step + d * column_step;
      const Index n = min_of(order.columns, about.dim - d);
      for (Index i = 0; i < n; ++i)
        (to_room ? lies[i] : from[i * column_step]) = to_room ? from[i * column_step] : lies[i];
      for (Index i = n; to_room && i < order.columns; ++i) lies[i] = T{};  // pads of dim are multiplied
    }
  const Index width = order.width(about.dim), whole = round_up(about.dim, order.columns);
  for (Index t = 0; to_room && t < tokens; ++t)
    for (Index d = whole; d < width; ++d) room[order.at(first + t, d, about.dim)] = T{};
}

void move_all(const AnyView& k, const AnyView& buffer, const PackedKeys& about, const AnyView& starts,
              bool to_room, Context& ctx) {
  const Index heads = about.kv_heads, tokens = k.size[1];
  if (k.count() == 0) return;  // its data may be null
  const auto start = [&](Index b) {
    if (!to_room) return Index{0};
    return starts.given() ? static_cast<const Index*>(starts.data)[b * starts.step[0]] : about.tokens;
  };
  const auto typed = [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(k.size[0] * heads, [&](Index task, int) noexcept {
      const Index b = task / heads, h = task % heads;
      move_tokens<T>(about,
                     {.room = static_cast<T*>(buffer.data) + b * buffer.step[0] + h * buffer.step[1],
                      .k = static_cast<T*>(k.data) + b * k.step[0] + h * k.step[2],
                      .tokens = tokens,
                      .first = start(b),
                      .token_step = k.step[1],
                      .column_step = k.step[3]},
                     to_room);
    });
  };
  switch (size_of(about.dtype)) {  // bits are moved, not numbers
    case 4: return typed(Type<std::uint32_t>{});
    case 2: return typed(Type<std::uint16_t>{});
    default: return typed(Type<std::uint8_t>{});
  }
}

void put_keys(const char* op, const AnyView& k, const AnyView& buffer, PackedKeys& about,
              const AnyView& starts, Context& ctx) {
  check_keys(op, k, about);
  check_buffer(op, buffer, about, k.size[0]);
  require(each_element_once(buffer), ErrorKind::bad_argument, op, "the buffer is ", buffer,
          " with steps that put two elements in one place; give it memory of its own");
  require(!may_share_bytes(buffer, k), ErrorKind::bad_argument, op,
          "the buffer overlaps k in memory; give it memory of its own");
  const KeyOrder order = cpu::key_order(about.dtype);
  require(about.order == order, ErrorKind::bad_argument, op, "the buffer's keys lie ", about.order,
          " but this machine's class of ", about.dtype, " reads ", order,
          "; pack them again on this machine");
  Index longest = about.tokens;
  require_here(op, "starts", starts);
  if (starts.given())
    require(starts.rank == 1 && starts.dtype == DType::i64 && starts.size[0] == k.size[0],
            ErrorKind::bad_shape, op, "starts are ", starts, " but i64 [", k.size[0], "] is needed, [batch]");
  // Without starts all sequences, even none, grow alike.
  for (Index b = 0; b < (starts.given() ? k.size[0] : 1); ++b) {
    const Index at =
        starts.given() ? static_cast<const Index*>(starts.data)[b * starts.step[0]] : about.tokens;
    // Past the tokens lies memory nobody wrote, which would count as tokens.
    require(0 <= at && at <= about.tokens, ErrorKind::bad_argument, op, "the start of sequence ", b, " is ",
            at, " but ", about.tokens, " tokens are packed; give a start from 0 to ", about.tokens);
    require(k.size[1] <= about.capacity - at, ErrorKind::bad_shape, op, "sequence ", b, " would have ",
            k.size[1], " tokens more than ", at, " but its buffer has room for ", about.capacity,
            "; a cache cannot be longer than its buffer: make a larger one and pack again");
    longest = max_of(longest, at + k.size[1]);
  }
  move_all(k, buffer, about, starts, true, ctx);
  about.tokens = longest;
}

}  // namespace

void check_packed_keys(std::string_view op, const PackedKeys& about) {
  const KeyOrder& o = about.order;
  require(
      o.group > 0 && o.columns > 0 && o.pad > 0 && o.pad % o.columns == 0 && KeyOrder::kUnit % o.group == 0,
      ErrorKind::bad_argument, op,
      "the description of packed keys has no order; fill it with packed_keys(...)");
  require(packs(about.dtype), ErrorKind::bad_dtype, op, "packed keys hold ", about.dtype,
          "; use f32, bf16, f16, i8 or e4m3");
  constexpr Index kMost = Index{1} << 31;
  require(0 <= about.kv_heads && about.kv_heads <= kMost && 1 <= about.dim && about.dim <= kMost &&
              0 <= about.capacity && about.capacity <= Index{1} << 62,
          ErrorKind::bad_shape, op, "packed keys have ", about.kv_heads, " kv_heads, dim ", about.dim,
          " and capacity ", about.capacity,
          "; heads and capacity start at 0, dim at 1, both end at 2^31 and 2^62");
  const Checked bytes = Checked(round_up(about.capacity, KeyOrder::kUnit)) * Checked(o.width(about.dim)) *
                        Checked(max_of(1, about.kv_heads)) * Checked(size_of(about.dtype));
  require(bytes.ok, ErrorKind::bad_shape, op, "packed keys of ", about.kv_heads, " kv_heads, dim ", about.dim,
          " and capacity ", about.capacity, " reach past 2^63 bytes; use smaller sizes");
  require(0 <= about.tokens && about.tokens <= about.capacity, ErrorKind::bad_shape, op, "packed keys have ",
          about.tokens, " tokens but room for ", about.capacity,
          "; a cache cannot be longer than its buffer");
}

PackedKeys packed_keys(DType dtype, Index kv_heads, Index dim, Index capacity) {
  require(packs(dtype), ErrorKind::bad_dtype, "packed_keys", "packed keys hold ", dtype,
          "; use f32, bf16, f16, i8 or e4m3");
  const PackedKeys about{cpu::key_order(dtype), dtype, kv_heads, dim, capacity, 0};
  check_packed_keys("packed_keys", about);
  return about;
}

std::size_t packed_key_bytes(const PackedKeys& about) {
  check_packed_keys("packed_key_bytes", about);
  return static_cast<std::size_t>(about.kv_heads * about.room() * size_of(about.dtype));
}

void pack_keys(const InputView& k, const AnyView& buffer, PackedKeys& about, Context& ctx) {
  PackedKeys fresh = about;
  fresh.tokens = 0;
  put_keys("pack_keys", k, buffer, fresh, {}, ctx);
  about = fresh;
}

void append_keys(const InputView& k, const AnyView& buffer, PackedKeys& about, Context& ctx,
                 const InputView& starts) {
  put_keys("append_keys", k, buffer, about, starts, ctx);
}

void unpack_keys(const InputView& buffer, const PackedKeys& about, const AnyView& k, Context& ctx) {
  const char* op = "unpack_keys";
  check_keys(op, k, about);
  check_buffer(op, buffer, about, k.size[0]);
  require(k.size[1] <= about.tokens, ErrorKind::bad_shape, op, "k asks for ", k.size[1], " tokens but ",
          about.tokens, " are packed; ask for fewer");
  require(each_element_once(k) && !may_share_bytes(k, buffer), ErrorKind::bad_argument, op,
          "k repeats an element or overlaps the buffer; give it memory of its own");
  move_all(k, buffer, about, {}, false, ctx);
}

}  // namespace headwise
