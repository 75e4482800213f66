// key_order: how packed keys of a dtype lie at the chosen ISA level.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/packed_keys.h"

namespace headwise::cpu {

KeyOrder key_order(DType kv_dtype);

}  // namespace headwise::cpu
