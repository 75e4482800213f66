#include "headwise/train/gates.h"

#include <cmath>

#include "headwise/base/random.h"

namespace headwise {
namespace {

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double clip01(double x) { return std::fmin(1.0, std::fmax(0.0, x)); }

}  // namespace

double HardConcrete::gate(double log_a, double u) const {
  return clip01(sigmoid((std::log(u) - std::log1p(-u) + log_a) / beta) * (zeta - gamma) + gamma);
}
double HardConcrete::slope(double log_a, double u) const {
  const double s = sigmoid((std::log(u) - std::log1p(-u) + log_a) / beta), wide = s * (zeta - gamma) + gamma;
  return wide > 0 && wide < 1 ? (zeta - gamma) * s * (1 - s) / beta : 0.0;
}
double HardConcrete::p_shut(double log_a) const { return sigmoid(beta * std::log(-gamma / zeta) - log_a); }
double HardConcrete::p_full(double log_a) const {
  return sigmoid(log_a - beta * std::log((1 - gamma) / (zeta - 1)));
}
double HardConcrete::at_rest(double log_a) const { return clip01(sigmoid(log_a) * (zeta - gamma) + gamma); }

HeadGates::HeadGates(ParamSet& params, std::string_view name, Index heads, double start, HardConcrete shape)
    : shape_(shape), heads_(heads) {
  require(heads >= 1, ErrorKind::bad_shape, "head gates", "got ", heads, " heads; give 1 or more");
  require(shape.beta > 0 && shape.gamma < 0 && shape.zeta > 1, ErrorKind::bad_argument, "head gates", "beta ",
          shape.beta, ", gamma ", shape.gamma, ", zeta ", shape.zeta,
          "; needed are beta > 0, gamma < 0 and zeta > 1, so that gates reach 0 and 1");
  log_a_ = params.add(name, {heads}, Init::constant(start));
  values_.resize(static_cast<std::size_t>(heads));
  rest();
}

double HeadGates::log_a_at(Index h) const {
  const AnyView v = log_a_.value();
  return load_double(v.data, v.dtype, h);
}
void HeadGates::add_grad(Index h, double x) {
  const AnyView g = log_a_.grad();
  require(g.given(), ErrorKind::bad_argument, "head gates", "\"", log_a_.name(),
          "\" has no gradient; call make_grads() on its set first");
  store_double(g.data, g.dtype, h, load_double(g.data, g.dtype, h) + x);
}

void HeadGates::draw(std::uint64_t seed, Index step, std::uint32_t site) {
  slopes_.resize(values_.size());
  const auto t = static_cast<std::uint64_t>(step);
  for (Index h = 0; h < heads_; ++h) {
    const auto block = Philox::block(seed, {static_cast<std::uint32_t>(h >> 2), static_cast<std::uint32_t>(t),
                                            static_cast<std::uint32_t>(t >> 32), site});
    // In (0, 1), never an end: ln stays finite.
    const double u = (static_cast<double>(block[static_cast<std::size_t>(h & 3)]) + 0.5) * 0x1p-32;
    values_[static_cast<std::size_t>(h)] = static_cast<float>(shape_.gate(log_a_at(h), u));
    slopes_[static_cast<std::size_t>(h)] = shape_.slope(log_a_at(h), u);
  }
}
void HeadGates::rest() {
  slopes_.clear();
  for (Index h = 0; h < heads_; ++h)
    values_[static_cast<std::size_t>(h)] = static_cast<float>(shape_.at_rest(log_a_at(h)));
}
void HeadGates::decide() {
  slopes_.clear();
  for (Index h = 0; h < heads_; ++h)
    values_[static_cast<std::size_t>(h)] =
        shape_.p_full(log_a_at(h)) > shape_.p_shut(log_a_at(h)) ? 1.0f : 0.0f;
}

std::span<const float> HeadGates::values() const noexcept { return values_; }

ConstView HeadGates::gate(Index batch, Index tokens) const {
  ConstView v = ConstView::packed(values_.data(), DType::f32, {batch, tokens, heads_});
  v.step[0] = v.step[1] = 0;
  return v;
}

void HeadGates::backward(const AnyView& dgate) {
  require(!slopes_.empty(), ErrorKind::bad_argument, "head gates",
          "backward needs gates that were drawn; call draw() first");
  require(dgate.rank >= 1 && dgate.size[dgate.rank - 1] == heads_, ErrorKind::bad_shape, "head gates",
          "dgate is ", dgate, "; its last size must be the ", heads_, " heads");
  const Index rows = heads_ ? dgate.count() / heads_ : 0;
  std::vector<double> sums(values_.size());
  for (Index row = 0; row < rows; ++row) {
    Index rest_of = row, offset = 0;
    for (int axis = dgate.rank - 2; axis >= 0; --axis) {
      offset += rest_of % dgate.size[axis] * dgate.step[axis];
      rest_of /= dgate.size[axis];
    }
    for (Index h = 0; h < heads_; ++h)
      sums[static_cast<std::size_t>(h)] +=
          load_double(dgate.data, dgate.dtype, offset + h * dgate.step[dgate.rank - 1]);
  }
  for (Index h = 0; h < heads_; ++h)
    add_grad(h, sums[static_cast<std::size_t>(h)] * slopes_[static_cast<std::size_t>(h)]);
}

double HeadGates::open() const {
  double sum = 0;
  for (Index h = 0; h < heads_; ++h) sum += shape_.p_open(log_a_at(h));
  return sum;
}
double HeadGates::price(double lambda, double weight) {
  // d p_open / d log_a = p_open (1 - p_open)
  for (Index h = 0; h < heads_; ++h) {
    const double p = shape_.p_open(log_a_at(h));
    add_grad(h, weight * lambda * p * (1 - p));
  }
  return lambda * open();
}

}  // namespace headwise
