#include "headwise/ops/row/rope.h"

#include <cmath>

#include "headwise/base/arena.h"
#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/rope.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

/// A microsecond or more of work: above the price of handing a task out.
constexpr Index kTaskElements = 1 << 12;
constexpr Index kPairs = 512;  // turns kept on the stack at once, 8 KB

/// Which op was called, and what it calls its tensors.
struct Call {
  std::string_view op, x, out;
};
constexpr Call kForward{"rope", "x", "out"}, kBackward{"rope_backward", "dout", "dx"};

template <class... Parts>
void argue(const Call& call, bool ok, const Parts&... parts) {
  require(ok, ErrorKind::bad_argument, call.op, parts...);
}
bool positive(double x) { return x > 0 && std::isfinite(x); }

void check_scaling(const Call& call, const RopeScaling& s, double base) {
  if (s.kind == RopeScalingKind::none) return;
  argue(call, positive(s.factor), "scaling factor is ", s.factor, "; give a positive finite number");
  if (s.kind == RopeScalingKind::linear || s.kind == RopeScalingKind::ntk) return;
  argue(call, s.original_length >= 1, "original_length is ", s.original_length,
        "; give the length of the training texts");
  if (s.kind == RopeScalingKind::llama3) {
    argue(
        call,
        positive(s.low_freq_factor) && positive(s.high_freq_factor) && s.low_freq_factor < s.high_freq_factor,
        "low_freq_factor is ", s.low_freq_factor, " and high_freq_factor ", s.high_freq_factor,
        "; give positive numbers, the low one below the high one");
    return;
  }
  argue(call, positive(s.beta_fast) && positive(s.beta_slow) && s.beta_slow <= s.beta_fast, "beta_fast is ",
        s.beta_fast, " and beta_slow ", s.beta_slow,
        "; give positive numbers, the slow one not above the fast one");
  argue(call, s.attention_factor == 0 || positive(s.attention_factor), "attention_factor is ",
        s.attention_factor, "; give a positive finite number, or 0 for 0.1 ln(factor) + 1");
  argue(call, base > 1, "base is ", base, "; yarn needs one above 1");
}

/// The dimensions that turn, after checking everything that does not depend on a run.
Index rotary_dim_of(const Call& call, const RopeOptions& options, Index head_dim) {
  argue(call, positive(options.base), "base is ", options.base, "; give a positive finite number");
  check_scaling(call, options.scaling, options.base);
  if (options.rotary_dim == kWholeHead) {
    argue(call, head_dim % 2 == 0, "head_dim is ", head_dim,
          ", which leaves one dimension without a partner; give an even rotary_dim");
    return head_dim;
  }
  argue(call, options.rotary_dim >= 0 && options.rotary_dim <= head_dim, "rotary_dim is ", options.rotary_dim,
        " and head_dim ", head_dim, "; give 0 to head_dim, or kWholeHead");
  argue(call, options.rotary_dim % 2 == 0, "rotary_dim is ", options.rotary_dim,
        "; give an even number, since dimensions turn in pairs");
  return options.rotary_dim;
}

Index position_of(const RopePositions& p, Index batch, Index token) {
  if (!p.tensor.given()) return p.start + token;
  const Index* data = static_cast<const Index*>(p.tensor.data);
  return p.tensor.rank == 1 ? data[token * p.tensor.step[0]]
                            : data[batch * p.tensor.step[0] + token * p.tensor.step[1]];
}

void check_run(const Call& call, const AnyView& x, const RopePositions& p, const AnyView& out) {
  require(x.rank == 4, ErrorKind::bad_shape, call.op, call.x, " is ", x, "; give [batch tokens heads dim]");
  check_in_out(call.op, x, out, call.x, call.out);
  if (!p.tensor.given()) return;
  const AnyView& t = p.tensor;
  require(t.dtype == DType::i64, ErrorKind::bad_dtype, call.op, "positions are ", t, "; give i64");
  const bool fits = (t.rank == 1 && t.size[0] == x.size[1]) ||
                    (t.rank == 2 && t.size[0] == x.size[0] && t.size[1] == x.size[1]);
  require(fits, ErrorKind::bad_shape, call.op, "positions are ", t, " but ", call.x, " is ", x,
          "; give one a token: [tokens] or [batch tokens]");
  check_memory(call.op, "positions", t);
  check_apart(call.op, out, "positions", t, call.out);
}

/// Every position of a run lies in lowest..highest.
void check_reach(const Call& call, const AnyView& x, const RopePositions& p, Index lowest, Index highest,
                 const char* way_out) {
  const auto check = [&](Index position, Index batch, Index token) {
    argue(call, lowest <= position && position <= highest, "position ", position, " of token ", token,
          " in sequence ", batch, " is outside ", lowest, " to ", highest, "; ", way_out);
  };
  if (x.count() == 0) return;
  if (!p.tensor.given()) {
    check(p.start, 0, 0);
    argue(call, p.start <= highest - (x.size[1] - 1), "start ", p.start, " with ", x.size[1],
          " tokens goes beyond ", highest, "; ", way_out);
    return;
  }
  const Index sequences = p.tensor.rank == 1 ? 1 : x.size[0];
  for (Index b = 0; b < sequences; ++b)
    for (Index t = 0; t < x.size[1]; ++t) check(position_of(p, b, t), b, t);
}

template <class T>
View<T, 2> heads_of(const AnyView& v, Index batch, Index token) {
  View<T, 2> heads;
  heads.data = static_cast<T*>(v.data) + batch * v.step[0] + token * v.step[1];
  for (int axis = 0; axis < 2; ++axis)
    heads.size[axis] = v.size[axis + 2], heads.step[axis] = v.step[axis + 2];
  return heads;
}

/// Turns every token. `turns(first, count, position, pairs)` points pairs.cos and .sin at the turns of those
/// pairs.
template <class Turns>
void turn_tokens(const AnyView& x, const RopePositions& positions, const AnyView& out,
                 const cpu::RopePairs& plan, ThreadPool& pool, const Turns& turns) {
  const Index batch = x.size[0], heads = x.size[2], dim = x.size[3];
  if (x.count() == 0) return;
  cpu::chosen_isa();  // an unknown level is said before tasks start
  const Index rows = batch * x.size[1], grain = max_of(1, kTaskElements / (heads * dim));
  const bool copies = x.data != out.data && plan.rotary_dim < dim;
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    pool.parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      const Index begin = task * grain, end = min_of(rows, begin + grain);
      double stack[2 * kPairs];
      for (Index first = 0; first < plan.rotary_dim / 2; first += kPairs) {
        cpu::RopePairs pairs = plan;
        pairs.first = first;
        pairs.pairs = min_of(kPairs, plan.rotary_dim / 2 - first);
        Index held = 0;
        // Tokens outside, sequences inside: sequences that stand at the same position share a turn.
        for (Index row = begin; row < end; ++row) {
          const Index position = position_of(positions, row % batch, row / batch);
          if (row == begin || position != held) turns(position, pairs, stack);
          held = position;
          cpu::rope_rotate<T>(heads_of<const T>(x, row % batch, row / batch),
                              heads_of<T>(out, row % batch, row / batch), pairs);
        }
      }
      for (Index row = begin; copies && row < end; ++row)
        cpu::copy_columns<T>(heads_of<const T>(x, row % batch, row / batch),
                             heads_of<T>(out, row % batch, row / batch), plan.rotary_dim);
    });
  });
}

double* fill_frequencies(const RopeRule& rule, Index pairs, Context& ctx) {
  Arena measure = Arena::measuring();
  measure.take<double>("rope.frequencies", pairs);
  Arena arena(ctx.workspace(measure.used()));
  double* frequency = arena.take<double>("rope.frequencies", pairs);
  for (Index i = 0; i < pairs; ++i) frequency[i] = rule.frequency(i);
  return frequency;
}

/// On a CUDA device: a task for each sequence; positions there cannot be looked at and are taken as they are.
void turn_there(const Call& call, const AnyView& x, const RopePositions& p, const AnyView& out,
                const RopeOptions& options, Device there, Context& ctx) {
  RopePositions checked = p;
  checked.tensor = as_checked(p.tensor);
  check_run(call, as_checked(x), checked, as_checked(out));
  const Index rotary_dim = rotary_dim_of(call, options, x.size[3]);
  require(x.step[3] == 1 && out.step[3] == 1, ErrorKind::unsupported, call.op, call.x, " is ", x, " on ",
          there, " with heads that do not lie side by side; copy it");
  require(!p.tensor.given() || p.tensor.step[p.tensor.rank - 1] == 1, ErrorKind::unsupported, call.op,
          "positions are ", p.tensor, " on ", there, " with steps; copy them side by side");
  const RopeRule rule(options, rotary_dim);
  require(rotary_dim / 2 <= cuda::RopeTask::kMostPairs, ErrorKind::unsupported, call.op, rotary_dim,
          " dimensions turn; on a device at most ", 2 * cuda::RopeTask::kMostPairs);
  cuda::RopeTask t{.dtype = x.dtype,
                   .tokens = x.size[1],
                   .heads = x.size[2],
                   .dim = x.size[3],
                   .x_step = {x.step[1], x.step[2]},
                   .out_step = {out.step[1], out.step[2]},
                   .start = p.start,
                   .kind = options.kind,
                   .pairs = static_cast<int>(rotary_dim / 2),
                   .factor = rule.attention_factor};
  for (Index i = 0; i < rotary_dim / 2; ++i)
    t.frequency[i] = options.inverse ? -rule.frequency(i) : rule.frequency(i);
  for (Index b = 0; b < x.size[0]; ++b) {
    t.x = static_cast<std::byte*>(x.data) + b * x.step[0] * size_of(x.dtype);
    t.out = static_cast<std::byte*>(out.data) + b * out.step[0] * size_of(x.dtype);
    if (p.tensor.given())
      t.positions =
          static_cast<const Index*>(p.tensor.data) + (p.tensor.rank == 2 ? b * p.tensor.step[0] : 0);
    start(t, there, ctx.stream());
  }
}

void turn_by_options(const Call& call, const AnyView& x, const RopePositions& positions, const AnyView& out,
                     const RopeOptions& options, Context& ctx) {
  const Device there = device_of(call.op, {{"x", x}, {"positions", positions.tensor}, {"out", out}});
  if (!there.is_cpu()) return turn_there(call, x, positions, out, options, there, ctx);
  check_run(call, x, positions, out);
  const Index rotary_dim = rotary_dim_of(call, options, x.size[3]);
  check_reach(call, x, positions, -kRopeReach, kRopeReach, "angles are exact only there");
  const FloatEnv env;
  const RopeRule rule(options, rotary_dim);
  const double* frequency = fill_frequencies(rule, rotary_dim / 2, ctx);
  const cpu::RopePairs plan{.kind = options.kind, .inverse = options.inverse, .rotary_dim = rotary_dim};
  turn_tokens(x, positions, out, plan, ctx.pool(),
              [&](Index position, cpu::RopePairs& pairs, double* stack) noexcept {
                cpu::rope_turns(frequency + pairs.first, pairs.pairs, position, rule.attention_factor, stack,
                                stack + kPairs);
                pairs.cos = stack;
                pairs.sin = stack + kPairs;
              });
}

void turn_by_table(const Call& call, const AnyView& x, const RopePositions& positions, const AnyView& out,
                   const RopeTable& table, bool inverse, Context& ctx) {
  check_run(call, x, positions, out);
  require(x.size[3] == table.head_dim(), ErrorKind::bad_shape, call.op, call.x, " is ", x,
          " but the table was made for head_dim ", table.head_dim(), "; make one for these heads");
  check_reach(call, x, positions, 0, table.positions() - 1, "make a longer table, or call without one");
  const cpu::RopePairs plan{
      .kind = table.options().kind, .inverse = inverse, .rotary_dim = table.rotary_dim()};
  turn_tokens(x, positions, out, plan, ctx.pool(),
              [&](Index position, cpu::RopePairs& pairs, double*) noexcept {
                pairs.cos = table.cos(position) + pairs.first;
                pairs.sin = table.sin(position) + pairs.first;
              });
}

}  // namespace

RopeTable::RopeTable(const RopeOptions& options, Index head_dim, Index positions, Context& ctx)
    : options_(options), head_dim_(head_dim), rotary_dim_(0), positions_(positions) {
  require(head_dim >= 0, ErrorKind::bad_shape, "rope", "head_dim is ", head_dim, "; sizes start at 0");
  rotary_dim_ = rotary_dim_of(kForward, options, head_dim);
  argue(kForward, positions >= 0 && positions <= kRopeReach, "a table of ", positions,
        " positions was asked; give 0 to ", kRopeReach);
  const Checked bytes =
      Checked(positions) * Checked(rotary_dim_) * Checked(static_cast<Index>(sizeof(double)));
  require(bytes.ok, ErrorKind::out_of_memory, "rope", "a table of ", positions, " positions and ",
          rotary_dim_, " dimensions has more bytes than any address space; use fewer positions, or no table");
  turns_ = Buffer(static_cast<std::size_t>(bytes.value));
  const FloatEnv env;
  const RopeRule rule(options, rotary_dim_);
  const double* frequency = fill_frequencies(rule, rotary_dim_ / 2, ctx);
  const Index grain = max_of(1, kTaskElements / 2 / max_of(1, rotary_dim_));
  ctx.pool().parallel_for(ceil_div(positions, grain), [&](Index task, int) noexcept {
    for (Index p = task * grain; p < min_of(positions, (task + 1) * grain); ++p)
      cpu::rope_turns(frequency, rotary_dim_ / 2, p, rule.attention_factor, turns(p),
                      turns(p) + rotary_dim_ / 2);
  });
}

void rope(const InputView& x, const RopePositions& positions, const AnyView& out, const RopeOptions& options,
          Context& ctx) {
  turn_by_options(kForward, x, positions, out, options, ctx);
}
void rope(const InputView& x, const RopePositions& positions, const AnyView& out, const RopeTable& table,
          bool inverse, Context& ctx) {
  turn_by_table(kForward, x, positions, out, table, inverse, ctx);
}

// out = R(angle) x: its transpose is R(-angle), the attention factor stays.
void rope_backward(const InputView& dout, const RopePositions& positions, const AnyView& dx,
                   const RopeOptions& options, Context& ctx) {
  RopeOptions back = options;
  back.inverse = !options.inverse;
  turn_by_options(kBackward, dout, positions, dx, back, ctx);
}
void rope_backward(const InputView& dout, const RopePositions& positions, const AnyView& dx,
                   const RopeTable& table, Context& ctx) {
  turn_by_table(kBackward, dout, positions, dx, table, !table.options().inverse, ctx);
}

}  // namespace headwise
