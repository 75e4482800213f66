#include "headwise/layers/transformer/stack.h"

#include <cmath>

#include "headwise/base/words.h"
#include "headwise/heads/sums.h"

namespace headwise {
namespace {

/// The rows of `y` in `home`, and everything taken since the mark given back.
void bring_home(const AnyView& y, const AnyView& home, const StepMemory::Mark& mark, Call& call) {
  copy_rows(y, home, call.ctx);
  call.memory.release(mark);
}

constexpr std::string_view kBlanks = " \t\r\n";  // around the heads of a layer

}  // namespace

std::string heads_of_layer(std::string_view heads, Index layer, Index layers) {
  std::string_view found, rest = heads;
  Index count = 0;
  for (bool more = true; more; ++count) {
    const std::size_t end = rest.find(';');
    more = end != rest.npos;
    if (count == layer) found = trimmed(rest.substr(0, end), kBlanks);
    rest.remove_prefix(more ? end + 1 : rest.size());
  }
  if (count == 1) return std::string(trimmed(heads, kBlanks));
  require(count == layers, ErrorKind::bad_argument, "stack", "heads names ", count, " layers but there are ",
          layers, " with weights of their own; give one text for all of them or one for each");
  return std::string(found);
}

Stack::Stack(ParamSet& params, std::string_view name, const StackOptions& o) : options_(o) {
  require(o.depth >= 0 && o.share_layers > 0, ErrorKind::bad_shape, "stack", "depth is ", o.depth,
          " and share_layers ", o.share_layers, "; depth starts at 0, share_layers at 1");
  require(o.depth % o.share_layers == 0, ErrorKind::bad_shape, "stack", "depth (", o.depth,
          ") must be a multiple of share_layers (", o.share_layers, "); change one of them");
  const auto scope = params.scope(name);
  for (Index i = 0; i < o.depth / o.share_layers; ++i) {
    BlockOptions block = o.block;
    block.layer = i * o.share_layers, block.depth = o.depth;
    block.heads = heads_of_layer(o.block.heads, i, o.depth / o.share_layers);
    block.cross_heads = heads_of_layer(o.block.cross_heads, i, o.depth / o.share_layers);
    block.init_scale *= std::pow(static_cast<double>(block.layer + 1), -o.ds_init);
    blocks_.emplace_back(params, text("layers.", i), block);
  }
  if (o.final_norm) norm_.emplace(params, "norm", o.block.model_dim, o.block.norm);
}

Index Stack::most_heads() const {
  Index most = 0;
  for (const Block& b : blocks_)
    if (b.self_attention()) most = max_of(most, b.self_attention()->head_count());
  return most;
}

AnyView Stack::forward(const InputView& x, Call& call, Saved* saved) const {
  const Teams* const teams = options_.block.teams;
  if (teams == nullptr || teams->context_ranks() == 1) return run(x, call, saved);
  require(call.plain() && call.see_rows == nullptr, ErrorKind::unsupported, "stack", "tokens are cut over ",
          teams->context_ranks(), " ranks, and nothing can be asked of heads and rows there; use one rank");
  return forward_in_context(x, call, saved);
}

/// This rank's of all rows.
AnyView Stack::held_rows(const InputView& x, Call& call) const {
  const Communicator& team = *options_.block.teams->context;
  const Slice held = slice_of(call.sequences.rows(), team.rank(), team.ranks());
  AnyView own = x;
  own.data = static_cast<std::byte*>(x.data) + held.begin * x.step[0] * size_of(x.dtype);
  own.size[0] = held.size;
  call.sequences.held = held;
  return own;
}

/// This rank's rows go through all blocks, then they are gathered.
AnyView Stack::forward_in_context(const InputView& x, Call& call, Saved* saved) const {
  check_activation("stack", "x", x, options_.block.model_dim, call.sequences);
  const Communicator& team = *options_.block.teams->context;
  const Sequences all = call.sequences;
  const AnyView y = call.memory.take(x.dtype, {x.size[0], x.size[1]});
  std::optional<Scratch> scratch;
  if (saved == nullptr) scratch.emplace(call.memory);
  const AnyView own = held_rows(x, call);
  call.rows_team = saved ? &team : nullptr;
  const AnyView mine = run(own, call, saved);
  call.sequences = all, call.rows_team = nullptr;
  team.gather(mine, y, 0, "rows of a stack");
  return y;
}

AnyView Stack::run(const InputView& x, Call& call, Saved* saved) const {
  AnyView y = x, home;
  if (saved)
    saved->blocks.resize(static_cast<std::size_t>(options_.depth));
  else
    home = call.memory.take(x.dtype, {x.size[0], x.size[1]});
  call.gate_heads = most_heads();
  if (call.see_rows) (*call.see_rows)(0, y);
  for (Index i = 0; i < options_.depth; ++i) {
    const StepMemory::Mark mark = call.memory.mark();
    call.block = i;
    y = block(i).forward(y, call, saved ? &saved->blocks[static_cast<std::size_t>(i)] : nullptr);
    // Without a backward only the last rows are needed: one block's memory serves all.
    if (!saved) bring_home(y, home, mark, call), y = home;
    if (call.see_rows) (*call.see_rows)(i + 1, y);
  }
  call.block = call.gate_heads = 0;
  return norm_ ? norm_->forward(y, call, saved ? &saved->norm : nullptr) : y;
}

AnyView Stack::backward(const InputView& dy, Call& call, Saved& saved) const {
  const Teams* const teams = options_.block.teams;
  if (teams == nullptr || teams->context_ranks() == 1) return run_backward(dy, call, saved);
  const Sequences all = call.sequences;
  const AnyView dx = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
  const AnyView own = held_rows(dy, call);
  call.rows_team = teams->context;
  const AnyView mine = run_backward(own, call, saved);
  call.sequences = all, call.rows_team = nullptr;
  teams->context->gather(mine, dx, 0, "gradients of a stack");
  return dx;
}

AnyView Stack::run_backward(const InputView& dy, Call& call, Saved& saved) const {
  const AnyView home = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
  AnyView slope = dy;
  const StepMemory::Mark mark = call.memory.mark();
  if (norm_) bring_home(norm_->backward(dy, call, saved.norm), home, mark, call), slope = home;
  for (Index i = options_.depth - 1; i >= 0; --i) {
    call.block = i;
    bring_home(block(i).backward(slope, call, saved.blocks[static_cast<std::size_t>(i)]), home, mark, call);
    slope = home;
  }
  call.block = 0;
  return slope;
}

}  // namespace headwise
