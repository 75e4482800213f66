#include "headwise/intent/recognizer/learnt_gates.h"

#include <algorithm>

#include "headwise/base/random.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
constexpr std::uint32_t kSite = 0x6a7e5u;  // draws of gates beside those of dropout

}  // namespace

LearntGates::LearntGates(ParamSet& params, std::vector<Index> heads) : heads_(std::move(heads)) {
  most_ = *std::max_element(heads_.begin(), heads_.end());
  const auto scope = params.scope("gates");
  log_a_ = params.add("log_a", {static_cast<Index>(heads_.size()), most_}, Init::constant(2));
}

double LearntGates::log_a(Index block, Index head) const {
  const AnyView v = log_a_.value();
  return load_double(v.data, v.dtype, block * most_ + head);
}

double LearntGates::draw_of(Index block, Index head, std::uint64_t seed) const {
  const auto words = Philox::block(
      seed, {static_cast<std::uint32_t>(head / 4), static_cast<std::uint32_t>(block), 0, kSite});
  // In (0, 1), never an end: ln stays finite.
  return (static_cast<double>(words[at(head % 4)]) + 0.5) * 0x1p-32;
}

std::vector<std::vector<Index>> LearntGates::shut() const {
  std::vector<std::vector<Index>> all(heads_.size());
  for (Index b = 0; b < static_cast<Index>(heads_.size()); ++b) {
    Index best = 0;
    for (Index h = 1; h < heads_[at(b)]; ++h)
      if (log_a(b, h) > log_a(b, best)) best = h;
    for (Index h = 0; h < heads_[at(b)]; ++h)
      if (h != best && !(shape_.p_full(log_a(b, h)) > shape_.p_shut(log_a(b, h)))) all[at(b)].push_back(h);
  }
  return all;
}

AnyView LearntGates::decided(StepMemory& memory) const {
  const auto blocks = static_cast<Index>(heads_.size());
  const AnyView gates = memory.take(DType::f32, {blocks, most_});
  auto* to = static_cast<float*>(gates.data);
  std::fill(to, to + blocks * most_, 1.0f);
  const auto gone = shut();
  for (Index b = 0; b < blocks; ++b)
    for (const Index h : gone[at(b)]) to[b * most_ + h] = 0;
  return gates;
}

AnyView LearntGates::drawn(std::uint64_t seed, StepMemory& memory) const {
  const auto blocks = static_cast<Index>(heads_.size());
  const AnyView gates = memory.take(DType::f32, {blocks, most_});
  for (Index b = 0; b < blocks; ++b)
    for (Index h = 0; h < most_; ++h)
      static_cast<float*>(gates.data)[b * most_ + h] =
          static_cast<float>(shape_.gate(log_a(b, h), draw_of(b, h, seed)));
  return gates;
}

double LearntGates::backward(const AnyView& dgates, std::uint64_t seed, double lambda, double weight) const {
  const AnyView grad = log_a_.grad();
  double price = 0;
  for (Index b = 0; b < static_cast<Index>(heads_.size()); ++b)
    for (Index h = 0; h < heads_[at(b)]; ++h) {
      double slope = 0;
      for (Index row = 0; row < dgates.size[1]; ++row)
        slope += load_double(dgates.data, dgates.dtype, (b * dgates.size[1] + row) * dgates.size[2] + h);
      const double open = shape_.p_open(log_a(b, h));
      // d p_open / d log_a = p_open (1 - p_open)
      const double own =
          slope * shape_.slope(log_a(b, h), draw_of(b, h, seed)) + weight * lambda * open * (1 - open);
      const Index place = b * most_ + h;
      store_double(grad.data, grad.dtype, place, load_double(grad.data, grad.dtype, place) + own);
      price += lambda * open;
    }
  return price;
}

}  // namespace headwise
