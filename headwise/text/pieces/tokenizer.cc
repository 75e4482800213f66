#include "headwise/text/pieces/tokenizer.h"

#include <algorithm>
#include <array>

namespace headwise {

void Tokenizer::set_added(std::vector<Added> added) {
  std::erase_if(added, [](const Added& a) { return a.text.empty(); });
  std::stable_sort(added.begin(), added.end(),
                   [](const Added& a, const Added& b) { return a.text.size() > b.text.size(); });
  added_ = std::move(added);
}

TokenId Tokenizer::special(std::string_view spelling) const {
  for (const Added& a : added_)
    if (a.text == spelling) return a.id;
  return -1;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const TokenizeOptions& options) const {
  std::vector<TokenId> out;
  if (options.begin && add_begin_) out.push_back(begin_);
  std::array<bool, 256> begins = {};
  for (const Added& a : added_)
    if (options.specials || !a.special) begins[static_cast<unsigned char>(a.text[0])] = true;
  std::size_t from = 0, at = 0;
  const auto plain = [&](std::size_t end) {
    if (end > from) encode_plain(text.substr(from, end - from), from == 0, out);
  };
  while (at < text.size()) {
    const Added* found = nullptr;
    if (begins[static_cast<unsigned char>(text[at])])
      for (const Added& a : added_)
        if ((options.specials || !a.special) && text.substr(at).starts_with(a.text)) {
          found = &a;
          break;
        }
    if (found == nullptr) {
      ++at;
      continue;
    }
    plain(at);
    out.push_back(found->id);
    from = at += found->text.size();
  }
  plain(text.size());
  return out;
}

std::string_view Tokenizer::bytes_after(TokenId before, TokenId id) const {
  std::string_view piece = bytes(id);
  const bool first = before < 0 || before == begin_;
  if (space_before_ && first && piece.starts_with(' ')) piece.remove_prefix(1);
  return piece;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string out;
  TokenId before = -1;
  for (const TokenId id : ids) out += bytes_after(before, id), before = id;
  return out;
}

}  // namespace headwise
