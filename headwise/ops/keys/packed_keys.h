// Packed keys: k stored as the kernels of this machine multiply it, so that decode reads it once, as it lies.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"
#include "headwise/spec/packed_keys.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// The description of an empty buffer for keys of `dtype` (f32, bf16, f16, or i8 and e4m3 with scales beside)
/// in the order this machine's ISA level reads. Bits of attention are the same for plain and packed keys.
PackedKeys packed_keys(DType dtype, Index kv_heads, Index dim, Index capacity);

/// Bytes of one sequence: kv_heads x room. A buffer for a batch is [batch kv_heads room]; it needs no
/// clearing, and what lies past a sequence's tokens is never computed with.
std::size_t packed_key_bytes(const PackedKeys& about);

/// k [batch tokens kv_heads dim] -> buffer [batch kv_heads room]; tokens becomes k's.
void pack_keys(const InputView& k, const AnyView& buffer, PackedKeys& about, Context& ctx);

/// Puts k [batch new_tokens kv_heads dim] behind what is there: token `about.tokens`, or starts [batch] i64
/// where sequences have lengths of their own, each from 0 to `about.tokens`. tokens becomes the longest
/// sequence's; where the others end is the caller's to know.
void append_keys(const InputView& k, const AnyView& buffer, PackedKeys& about, Context& ctx,
                 const InputView& starts = {});

/// The first k.size[1] tokens of the buffer -> k [batch tokens kv_heads dim], bit for bit.
void unpack_keys(const InputView& buffer, const PackedKeys& about, const AnyView& k, Context& ctx);

/// Throws unless the description can be: an order, sizes from 0 up, tokens inside the capacity, a room that
/// fits 63 bits. `op` is what the user called.
void check_packed_keys(std::string_view op, const PackedKeys& about);

}  // namespace headwise
#pragma GCC visibility pop
