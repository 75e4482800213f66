#include "headwise/decoder/drafter.h"

#include <algorithm>

namespace headwise {

std::vector<TokenId> NgramDrafter::guess(const DraftPlace& place, Context&) {
  const std::span<const TokenId> all = place.tokens;
  const auto n = static_cast<Index>(all.size());
  for (Index length = std::min(kLongest, n - 1); length >= 1; --length) {
    const std::span<const TokenId> last = all.subspan(static_cast<std::size_t>(n - length));
    for (Index at = n - length - 1; at >= 0; --at) {
      if (!std::equal(last.begin(), last.end(), all.begin() + at)) continue;
      const Index from = at + length, count = std::min(place.most, n - from);
      return {all.begin() + from, all.begin() + from + count};
    }
  }
  return {};
}

ModelDrafter::ModelDrafter(const Decoder& model, Index kv_bytes)
    : model_(model), cache_(model.kv_shape(), {.bytes = kv_bytes}) {
  require(!model.config().cross, ErrorKind::unsupported, "draft", "a ", model.config().family,
          " model looks at the states of an encoder; guesses come from models without cross-attention");
}

void ModelDrafter::forget(std::int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  cache_.close(found->second);
  sequences_.erase(found);
}

bool ModelDrafter::catch_up(SequenceId sequence, std::span<const TokenId> tokens, Context& ctx) {
  constexpr Index kAtOnce = 256;
  for (Index done = cache_.length(sequence); done < static_cast<Index>(tokens.size());) {
    const Index rows = std::min(kAtOnce, static_cast<Index>(tokens.size()) - done);
    if (!cache_.reserve(sequence, rows)) return false;
    const auto part = tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows));
    std::vector<DecoderRow> list;
    for (const TokenId token : part) list.push_back({sequence, token, false});
    done += rows;
    list.back().logits = done == static_cast<Index>(tokens.size());
    model_.forward(list, cache_, step_, ctx);
    cache_.commit(sequence, part);
  }
  return true;
}

std::vector<TokenId> ModelDrafter::guess(const DraftPlace& place, Context& ctx) {
  std::vector<TokenId> all(place.tokens.begin(), place.tokens.end()), guesses;
  const auto known = static_cast<Index>(all.size());
  const auto [found, fresh] = sequences_.try_emplace(place.id, 0);
  if (fresh) {
    found->second = cache_.open();
    cache_.adopt(found->second, all);
  }
  const SequenceId sequence = found->second;
  // What it holds of guesses that were wrong goes; the last token is computed again for its logits.
  const std::span<const TokenId> held = cache_.tokens(sequence);
  const auto same = std::mismatch(held.begin(), held.end(), all.begin(), all.end()).first - held.begin();
  cache_.truncate(sequence, std::min<Index>(same, known - 1));
  for (Index i = 0; i < place.most; ++i) {
    if (static_cast<Index>(all.size()) > model_.config().positions || !catch_up(sequence, all, ctx)) break;
    const std::span<const TokenId> view(all);
    const auto prompt = static_cast<std::size_t>(place.prompt);
    try {
      const Drawn drawn = draw(step_.logits(0), *place.sampling,
                               {.prompt = view.first(prompt), .output = view.subspan(prompt)},
                               {.position = static_cast<Index>(all.size()), .logprobs = false});
      all.push_back(drawn.token), guesses.push_back(drawn.token);
    } catch (const Error&) {
      break;  // a drafter that cannot draw has no guess
    }
  }
  return guesses;
}

}  // namespace headwise
