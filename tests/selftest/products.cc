// Products of matrices on this CPU level: against double, one row against many, threads, packed weights,
// gradients in parts.
#include <array>
#include <cmath>
#include <vector>

#include "headwise/kernels/ref/activation.h"
#include "headwise/ops/projection/backward.h"
#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

struct Linear {
  Tensor x, weight, bias, residual;
  Activation activation;
  bool parts = false;

  Linear(Index rows, Index in, Index out, DType dtype, std::uint64_t seed, Activation act)
      : x(random_normal({rows, in}, dtype, seed)),
        weight(random_normal({out, in}, dtype, seed + 1)),
        bias(random_normal({out}, DType::f32, seed + 2)),
        residual(random_normal({rows, out}, dtype, seed + 3)),
        activation(act) {}
  Tensor run(int threads, bool packs = false) const {
    Context& ctx = context("", threads);
    const InputView& w = weight.view();
    Tensor y(x.dtype(), {x.view().size[0], w.size[0]});
    const PackedMatrix packed = packs ? pack_matrix(w, x.dtype(), ctx, parts) : PackedMatrix();
    projection({.x = x.view(),
                .weight = packs ? InputView() : w,
                .bias = bias.view(),
                .residual = residual.view(),
                .out = y.view(),
                .packed = packs ? &packed : nullptr,
                .parts = parts},
               activation, ctx);
    return y;
  }
};

/// Farthest from double, in units of what the sum's own rounding explains.
void against_double(const Linear& p, const std::string& part) {
  Tensor y = p.run(2);
  const Index rows = p.x.view().size[0], in = p.x.view().size[1], out = p.weight.view().size[0];
  const double unit = p.x.dtype() == DType::bf16 ? 0x1p-8 : p.x.dtype() == DType::f16 ? 0x1p-11 : 0x1p-24;
  double worst = 0;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < out; ++j) {
      double sum = 0, size = 0;
      for (Index l = 0; l < in; ++l) {
        const double product = at(p.x.view(), i, l) * at(p.weight.view(), j, l);
        sum += product, size += std::fabs(product);
      }
      sum += at(p.bias.view(), j);
      const double truth = ref::activate(p.activation, sum) + at(p.residual.view(), i, j);
      // An activation's slope is at most 1.13.
      const double allowed = 1.2 * (size + std::fabs(sum)) * static_cast<double>(in + 4) * 0x1p-24 +
                             (std::fabs(truth) + std::fabs(sum)) * 2 * unit + 1e-6;
      worst = std::fmax(worst, std::fabs(at(y.view(), i, j) - truth) / allowed);
    }
  check(worst <= 1, part, text("off by ", worst, " times what its rounding explains"));
}

void rows_alone(const Linear& p, const std::string& part) {
  Tensor whole = p.run(2);
  const Index rows = p.x.view().size[0], out = p.weight.view().size[0];
  bool same = true;
  for (Index i = 0; i < rows; i += 3) {
    const auto row = [&](const Tensor& t) {
      InputView v = t.view();
      v.data = static_cast<std::byte*>(v.data) + i * v.step[0] * size_of(v.dtype);
      v.size[0] = 1;
      return v;
    };
    Tensor y(p.x.dtype(), {1, out});
    projection({.x = row(p.x),
                .weight = p.weight.view(),
                .bias = p.bias.view(),
                .residual = row(p.residual),
                .out = y.view(),
                .parts = p.parts},
               p.activation, context("", 1));
    same = same && std::memcmp(y.view().data, row(whole).data,
                               static_cast<std::size_t>(out * size_of(y.dtype()))) == 0;
  }
  check(same, part, "a row alone is not the row among others");
  for (const int threads : {1, 3}) {
    check(same_bits(p.run(threads), whole), part, text(threads, " threads give other bits"));
    check(same_bits(p.run(threads, true), whole), part,
          text(threads, " threads and packed weights give other bits"));
  }
}

/// The gradients of a batch in one run and in two, cut at 32 rows.
void gradients(DType dtype, Index in, Index out, bool parts, const std::string& part) {
  const Linear p(70, in, out, dtype, 40, Activation::none);
  Tensor dy = random_normal({70, out}, dtype, 50);
  const auto run = [&](std::vector<Index> ends, int threads) {
    struct {
      Tensor dx, dweight, dbias;
    } g{Tensor(dtype, {70, in}), Tensor(DType::f32, {out, in}), Tensor(DType::f32, {out})};
    Index first = 0;
    for (const Index end : ends) {
      const auto rows = [&](const Tensor& t) {
        InputView v = t.view();
        v.data = static_cast<std::byte*>(v.data) + first * v.step[0] * size_of(v.dtype);
        v.size[0] = end - first;
        return v;
      };
      projection_backward({.dy = rows(dy),
                           .x = rows(p.x),
                           .weight = p.weight.view(),
                           .dx = rows(g.dx),
                           .dweight = g.dweight.view(),
                           .dbias = g.dbias.view(),
                           .parts = parts},
                          context("", threads));
      first = end;
    }
    return g;
  };
  const auto whole = run({70}, 2), cut = run({32, 64, 70}, 3);
  check(same_bits(whole.dx, cut.dx) && same_bits(whole.dweight, cut.dweight) &&
            same_bits(whole.dbias, cut.dbias),
        part, "gradients of micro-batches do not add up to those of the batch");
  double worst = 0;
  for (Index j = 0; j < out; ++j)
    for (Index c = 0; c < in; ++c) {
      double sum = 0;
      for (Index i = 0; i < 70; ++i) sum += at(dy.view(), i, j) * at(p.x.view(), i, c);
      worst = std::fmax(worst, std::fabs(sum - at(whole.dweight.view(), j, c)));
    }
  check(worst < 1e-4, part, text("dweight is off by ", worst));
}

}  // namespace

void check_products(const Options& options) {
  std::uint64_t seed = 1000;
  const auto products = [&](DType dtype, Index rows, Index in, Index out, bool parts) {
    if (options.quick && rows * in * out > 50000) return;
    const std::string part =
        text("projection ", dtype, parts ? " in parts " : " ", rows, " rows ", in, " in ", out, " out");
    piece(part, [&] {
      Linear p(rows, in, out, dtype, seed, static_cast<Activation>(seed / 10 % 6));
      p.parts = parts;
      against_double(p, part);
      rows_alone(p, part);
    });
    seed += 10;
  };
  for (const DType dtype : kDtypes)
    for (const auto& [rows, in, out] :
         {std::array<Index, 3>{1, 1, 1}, {3, 5, 7}, {13, 31, 33}, {40, 600, 50}, {100, 70, 65}})
      products(dtype, rows, in, out, false);
  for (const auto& [rows, in, out] : {std::array<Index, 3>{5, 128, 65}, {100, 70, 130}, {40, 600, 77}})
    products(DType::f32, rows, in, out, true);
  for (const DType dtype : kDtypes) {
    const std::string part = text("projection_backward ", dtype);
    piece(part, [&] { gradients(dtype, 35, 50, false, part); });
  }
  const std::string part = "projection_backward f32 in parts";
  piece(part, [&] { gradients(DType::f32, 100, 130, true, part); });
}

}  // namespace headwise::selftest
