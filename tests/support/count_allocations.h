// Counts calls of operator new in this program; link count_allocations.cc with the test that asks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace headwise::test {

/// Calls of any operator new so far, on all threads.
std::uint64_t allocations() noexcept;

/// The n-th call of operator new from now (1: the next) fails like a system without memory; 0: none fails.
void fail_allocation(std::uint64_t n) noexcept;

}  // namespace headwise::test
