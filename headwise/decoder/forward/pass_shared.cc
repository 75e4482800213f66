// Rows whose keys are shared out over a context team.
#include "headwise/decoder/forward/pass.h"
#include "headwise/ops/attention/shared_keys.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace

void DecoderPass::attend_shared(const AttentionArgs& args) {
  const Communicator& team = *model_.options_.context;
  const SharedKeys keys(args, ctx_);
  const Index each = keys.state_numbers(), splits = keys.splits(), tokens = splits * kSplitKeys;
  std::vector<Index> ends;
  std::vector<const float*> states(at(splits));
  constexpr Index kColumns = 1024;
  const AnyView memory = scratch(Scratch::states, ceil_div(splits * each, kColumns), kColumns);
  auto* first = static_cast<float*>(memory.data);
  float* mine = first;
  for (int r = 0; r < team.ranks(); ++r) {
    float* const from = first + (r == 0 ? 0 : ends.back());
    const KeyShare share{r, team.ranks()};
    if (r == team.rank()) mine = from;
    for (Index i = 0; i < share.splits(tokens); ++i) states[at(r + i * team.ranks())] = from + i * each;
    ends.push_back(from - first + share.splits(tokens) * each);
  }
  const KeyShare own = model_.key_share();
  keys.own_states(own, {mine, at(own.splits(tokens) * each)});
  team.gather_pieces(AnyView::packed(first, DType::f32, {splits * each}), ends, "states of keys");
  keys.join(states);
}

}  // namespace headwise
