#include "headwise/ops/attention/shared_keys.h"

#include "headwise/kernels/cpu/forward/decode.h"
#include "headwise/kernels/cpu/forward/online.h"
#include "headwise/kernels/cpu/forward/shared_keys.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/choice.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "shared keys";
static_assert(kSplitKeys == cpu::forward::kSplit);

}  // namespace

SharedKeys::SharedKeys(const AttentionArgs& args, Context& ctx)
    : problem_(problem_of(args)), args_(args), ctx_(ctx) {
  require(problem_.keys == KeyForm::paged && problem_.device.is_cpu(), ErrorKind::unsupported, kOp,
          "keys do not lie in pages on the CPU, where alone they are shared out; give pages");
  const std::string why = cpu::forward::kDecode.refuse(problem_);
  require(why.empty(), ErrorKind::unsupported, kOp, "cpu/decode refused: ", why);
  // Pages that other ranks have are never read; any page stands for them.
  const PageTable& t = args.page_table;
  const Index each = t.table.size[1];
  for (Index i = 0; i < problem_.batch * each; ++i)
    pages_.push_back(static_cast<std::int32_t>(max_of(t.page(i / each, i % each), 0)));
  args_.page_table.table = AnyView::packed(pages_.data(), DType::i32, {problem_.batch, each});
  args_ = check_args(problem_, args_);
}

Index SharedKeys::state_numbers() const { return cpu::forward::state_numbers(problem_); }

std::span<std::byte> SharedKeys::workspace() const {
  const std::size_t bytes = with_room_to_align(cpu::forward::shared_bytes(problem_, ctx_.threads()));
  return aligned_part(kOp, ctx_.workspace(bytes), bytes, true);
}

void SharedKeys::own_states(const KeyShare& share, std::span<float> states) const {
  const Index numbers = share.splits(problem_.kv_tokens) * state_numbers();
  require(static_cast<Index>(states.size()) == numbers, ErrorKind::bad_shape, kOp, "got room for ",
          states.size(), " numbers of the states of rank ", share.rank, " of ", share.ranks, "; give ",
          numbers);
  cpu::forward::run_splits(problem_, args_, {share.rank, share.ranks, states.data()}, workspace(),
                           ctx_.pool());
}

void SharedKeys::join(std::span<const float* const> states) const {
  require(static_cast<Index>(states.size()) == splits(), ErrorKind::bad_shape, kOp, "got the states of ",
          states.size(), " splits of ", splits(), "; give those of all");
  cpu::forward::join_splits(problem_, args_, states, workspace(), ctx_.pool());
}

}  // namespace headwise
