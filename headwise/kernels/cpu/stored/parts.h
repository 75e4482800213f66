// Products of bf16 weights by matrix tiles: rows in three parts of bf16.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/stored_kernels.h"
#include "headwise/kernels/cpu/stored/stored.h"

namespace headwise::cpu::stored {

std::size_t workspace_in_parts(const Product& p, int threads);
/// `chain`: computes rows and outputs that tiles cannot take.
void run_in_parts(const Product& p, const StoredParts& parts, const StoredCore& chain,
                  std::span<std::byte> workspace, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::stored
