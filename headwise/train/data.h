// Training data: the order of examples as a function of counters, token files cut into windows, and toy
// tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// An endless walk through `count` examples: each epoch is a permutation of all, drawn from (seed, epoch)
/// alone. So the place in the walk is one integer, and nothing else needs to be kept to go on.
class ExampleOrder {
 public:
  ExampleOrder(Index count, std::uint64_t seed);
  /// The example at place t >= 0 of the walk.
  Index at(Index t);
  Index epoch_of(Index t) const { return t / count_; }

 private:
  Index count_, epoch_ = -1;
  std::uint64_t seed_;
  std::vector<Index> order_;
};

/// A safetensors file with one i32 tensor "tokens" [count].
void write_tokens(const std::string& path, std::span<const std::int32_t> tokens);
std::vector<std::int32_t> read_tokens(const std::string& path);

/// Windows over a text for language models: example e has inputs tokens[e w .. e w + w) and labels one
/// further.
class TokenWindows {
 public:
  TokenWindows(std::vector<std::int32_t> tokens, Index width);
  Index count() const noexcept { return count_; }
  Index width() const noexcept { return width_; }
  /// inputs and labels [width] each.
  void read(Index example, std::span<std::int32_t> inputs, std::span<std::int32_t> labels) const;

 private:
  std::vector<std::int32_t> tokens_;
  Index width_, count_;
};

/// s_1 .. s_n, a separator, then the same symbols copied, reversed or sorted: what a causal model must
/// continue.
enum class ToyTask : std::uint8_t { copy, reverse, sort };

struct ToyExamples {
  ToyTask task = ToyTask::copy;
  Index length = 8, symbols = 16;  // tokens are 0..symbols-1, the separator is `symbols`
  std::uint64_t seed = 0;

  Index width() const { return 2 * length; }
  Index classes() const { return symbols + 1; }
  /// inputs and labels [width]: s_1 .. s_n | t_1 .. t_n-1, and -100 (counts nowhere) for the first n, then
  /// t_1 .. t_n.
  void read(Index example, std::span<std::int32_t> inputs, std::span<std::int32_t> labels) const;
};

}  // namespace headwise
#pragma GCC visibility pop
