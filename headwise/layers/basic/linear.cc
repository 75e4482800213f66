#include "headwise/layers/basic/linear.h"

#include <vector>

#include "headwise/layers/basic/leaves.h"
#include "headwise/layers/basic/packed_weights.h"
#include "headwise/layers/basic/team_rows.h"
#include "headwise/ops/projection/backward.h"
#include "headwise/ops/projection/projection.h"

namespace headwise {

Linear::Linear(ParamSet& params, std::string_view name, Index in, Index out, LinearOptions options)
    : in_(in), out_(out), all_out_(out), options_(options) {
  require(in > 0 && out > 0, ErrorKind::bad_shape, "linear", name, " goes from ", in, " to ", out,
          " columns; both start at 1");
  const auto scope = params.scope(name);
  if (options.teams == nullptr) options_.cut = Cut::none;
  if (options_.cut != Cut::none) {
    const int rank = options.teams->tensor_rank(), ranks = options.teams->tensor_ranks();
    const bool rows = options_.cut == Cut::out || options.teams->order == Order::one_rank;
    require(rows || options.leaves % ranks == 0 || options.teams->order == Order::engine,
            ErrorKind::unsupported, "ranks", name, " sums ", in, " columns in ", options.leaves,
            " leaves, which ", ranks, " ranks do not divide; take fewer ranks");
    (rows ? out_ : in_) = slice_of(rows ? out : in, rank, ranks).size;
  }
  const double range = options.init_scale * std::sqrt(6 / static_cast<double>(in + out));
  weight_ = params.add("weight", {out_, in_}, Init::uniform(range));
  if (options.bias) bias_ = params.add("bias", {out_});
}

Index Linear::own_leaves() const {
  return options_.teams->order == Order::engine ? 1 : options_.leaves / options_.teams->tensor_ranks();
}

void read_weight(const AnyView& weight, Call& call, ProjectionArgs& args) {
  args.parts = call.training;
  if (call.packed && !call.training) args.packed = call.packed->find(weight, args.x.dtype, call.ctx);
  if (!args.packed) args.weight = weight;
}

AnyView project_rows(const AnyView& x, const Learned& weight, const Learned& bias, Call& call,
                     const AnyView& residual, Activation activation, const AnyView& slope) {
  const AnyView y = call.memory.take(x.dtype, {x.size[0], weight.value().size[0]});
  ProjectionArgs args{.x = x, .bias = bias.value(), .residual = residual, .slope = slope, .out = y};
  read_weight(weight.value(), call, args);
  projection(args, activation, call.ctx);
  return y;
}

AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const Learned& weight, const Learned& bias,
                              Call& call, const AnyView& residual, const AnyView& factor) {
  return project_rows_backward(dy, x,
                               {.weight = weight.value(), .dweight = weight.grad(), .dbias = bias.grad()},
                               call, residual, factor);
}

AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const LinearViews& of, Call& call,
                              const AnyView& residual, const AnyView& factor) {
  const AnyView w = of.weight;
  const AnyView dx = call.memory.take(dy.dtype, {dy.size[0], w.size[1]});
  // y = x W^T  ->  dx = dy W: a projection by the transposed weight, so that a residual costs no pass.
  projection({.x = dy,
              .weight = turned(w),
              .residual = residual,
              .factor = factor,
              .out = dx,
              .parts = call.training},
             Activation::none, call.ctx);
  parameter_gradients({.dy = dy, .x = x, .dweight = of.dweight, .dbias = of.dbias, .parts = call.training},
                      call);
  return dx;
}

AnyView Linear::forward(const InputView& x, Call& call, Saved* saved, const Tail& tail, Activation activation,
                        const AnyView& slope) const {
  const DropoutOptions dropped = call.next_dropout(tail.dropout);
  const bool drops = dropped.p > 0;
  const InputView residual = drops ? InputView{} : tail.residual;
  const SumTail behind{.bias = bias_.value(), .residual = residual};
  const LeafProduct product{.x = x, .weight = weight_.value()};
  const AnyView y =
      sums(Cut::in) ? sum_leaves({&product, 1}, own_leaves(), behind, call, *options_.teams, name())
      : gathers()   ? gathered_rows(x, weight_.value(), behind, all_out_, call, *options_.teams, name())
                    : project_rows(x, weight_, bias_, call, residual, activation, slope);
  if (drops) dropout(y, tail.residual, dropped, y, call.ctx);
  if (saved) *saved = {x, dropped};
  return y;
}

AnyView Linear::backward(const InputView& dy, Call& call, const Saved& saved, const InputView& residual,
                         const InputView& factor) const {
  AnyView slope = dy;
  if (saved.dropout.p > 0) {
    slope = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
    dropout_backward(dy, saved.dropout, slope, call.ctx);
  }
  if (!sums(Cut::out)) return project_rows_backward(slope, saved.x, weight_, bias_, call, residual, factor);
  const Linear* const self = this;
  return backward_together({&self, 1}, {&slope, 1}, saved.x, call, residual);
}

AnyView Linear::backward_together(std::span<const Linear* const> maps, std::span<const AnyView> dy,
                                  const AnyView& x, Call& call, const AnyView& residual) {
  std::vector<LeafProduct> products;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const Linear& map = *maps[i];
    products.push_back({.x = dy[i], .weight = turned(map.weight_.value())});
    parameter_gradients({.dy = dy[i],
                         .x = x,
                         .dweight = map.weight_.grad(),
                         .dbias = map.bias_.grad(),
                         .parts = call.training},
                        call);
  }
  const Linear& first = *maps[0];
  return sum_leaves(products, first.own_leaves(), {.residual = residual}, call, *first.options_.teams,
                    first.name());
}

}  // namespace headwise
