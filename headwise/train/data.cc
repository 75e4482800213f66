#include "headwise/train/data.h"

#include <algorithm>

#include "headwise/base/random.h"
#include "headwise/model/safetensors.h"

namespace headwise {
namespace {

/// Uniform in [0, n), n < 2^32 or so: the 64-bit product's upper half; its bias is below n / 2^64.
Index below(std::uint64_t key, Philox::Block counter, Index n) {
  const Philox::Block r = Philox::block(key, counter);
  const std::uint64_t word = std::uint64_t{r[1]} << 32 | r[0];
  return static_cast<Index>(static_cast<unsigned __int128>(word) * static_cast<std::uint64_t>(n) >> 64);
}

}  // namespace

ExampleOrder::ExampleOrder(Index count, std::uint64_t seed) : count_(count), seed_(seed) {
  require(count >= 1, ErrorKind::bad_argument, "training data",
          "the data set is empty; give it one example or more");
}

Index ExampleOrder::at(Index t) {
  const Index epoch = t / count_;
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(count_));
    for (Index i = 0; i < count_; ++i) order_[static_cast<std::size_t>(i)] = i;
    const auto e = static_cast<std::uint64_t>(epoch);
    for (Index i = count_ - 1; i > 0; --i) {
      const auto word = static_cast<std::uint64_t>(i);
      const Philox::Block counter = {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32),
                                     static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(e >> 32)};
      std::swap(order_[static_cast<std::size_t>(i)],
                order_[static_cast<std::size_t>(below(seed_, counter, i + 1))]);
    }
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(t % count_)];
}

void write_tokens(const std::string& path, std::span<const std::int32_t> tokens) {
  const NamedTensor all[] = {
      {"tokens", ConstView::packed(tokens.data(), DType::i32, {static_cast<Index>(tokens.size())})}};
  write_safetensors(path, all, {{"headwise.tokens", "1"}});
}

std::vector<std::int32_t> read_tokens(const std::string& path) {
  const Safetensors file(path, {.reading = Reading::copied});
  const SafetensorsEntry& e = file.entry("tokens");
  require(e.dtype == "I32" && e.rank == 1, ErrorKind::bad_dtype, "read_tokens", path, ": \"tokens\" is ",
          e.dtype, " with ", e.rank, " sizes; it must be I32 with one");
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(e.size[0]));
  file.read("tokens", AnyView::packed(tokens.data(), DType::i32, {e.size[0]}));
  return tokens;
}

TokenWindows::TokenWindows(std::vector<std::int32_t> tokens, Index width)
    : tokens_(std::move(tokens)), width_(width) {
  require(width >= 1, ErrorKind::bad_argument, "token windows", "the width is ", width, "; give 1 or more");
  count_ = max_of(0, static_cast<Index>(tokens_.size()) - 1) / width;
  require(count_ >= 1, ErrorKind::bad_argument, "token windows", "the data set is empty: ", tokens_.size(),
          " tokens do not fill one window of ", width, " and its labels; give more text or a smaller width");
}

void TokenWindows::read(Index example, std::span<std::int32_t> inputs, std::span<std::int32_t> labels) const {
  require(example >= 0 && example < count_, ErrorKind::bad_argument, "token windows", "got example ", example,
          "; they are numbered from 0 to ", count_ - 1);
  const auto w = static_cast<std::size_t>(width_);
  require(inputs.size() == w && labels.size() == w, ErrorKind::bad_shape, "token windows", "got room for ",
          inputs.size(), " inputs and ", labels.size(), " labels; a window has ", width_);
  const std::int32_t* from = tokens_.data() + example * width_;
  std::copy(from, from + width_, inputs.begin());
  std::copy(from + 1, from + 1 + width_, labels.begin());
}

void ToyExamples::read(Index example, std::span<std::int32_t> inputs, std::span<std::int32_t> labels) const {
  require(length >= 1 && symbols >= 1, ErrorKind::bad_argument, "toy examples", "got length ", length,
          " and ", symbols, " symbols; give 1 or more of each");
  const auto n = static_cast<std::size_t>(length);
  require(inputs.size() == 2 * n && labels.size() == 2 * n, ErrorKind::bad_shape, "toy examples",
          "got room for ", inputs.size(), " inputs and ", labels.size(), " labels; an example has ",
          2 * length);
  const auto e = static_cast<std::uint64_t>(example);
  for (std::size_t i = 0; i < n; ++i)
    inputs[i] = static_cast<std::int32_t>(below(seed,
                                                {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(e),
                                                 static_cast<std::uint32_t>(e >> 32), 0x70f1u},
                                                symbols));
  std::vector<std::int32_t> target(inputs.begin(), inputs.begin() + length);
  switch (task) {
    case ToyTask::copy: break;
    case ToyTask::reverse: std::reverse(target.begin(), target.end()); break;
    case ToyTask::sort: std::sort(target.begin(), target.end()); break;
  }
  inputs[n] = static_cast<std::int32_t>(symbols);
  for (std::size_t i = 0; i + 1 < n; ++i) inputs[n + 1 + i] = target[i];
  for (std::size_t i = 0; i < n; ++i) labels[i] = -100, labels[n + i] = target[i];
}

}  // namespace headwise
