#include "headwise/heads/any_head.h"

#include <optional>

#include "headwise/heads/list.inc"

namespace headwise {

std::string head_names() {
  std::string s;
  AllHeads::each([&]<class H>(Type<H>) { s += text(s.empty() ? "" : ", ", H::name); });
  return s;
}

AnyHead make_head(std::string_view words, ParamSet& params, Place place) {
  const std::string_view name = words.substr(0, words.find(':'));
  const std::string_view settings =
      name.size() < words.size() ? words.substr(name.size() + 1) : std::string_view{};
  std::optional<AnyHead> made;
  AllHeads::each([&]<class H>(Type<H>) {
    if (H::name == name) made.emplace(H(parse_config<H>(settings), params, place));
  });
  require(made.has_value(), ErrorKind::bad_argument, "heads", "there is no head \"", name, "\"; there are ",
          head_names());
  return *made;
}

}  // namespace headwise
