#include "headwise/decoder/text_stream.h"

#include <algorithm>

#include "headwise/base/error.h"
#include "headwise/text/unicode.h"

namespace headwise {

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& s : stops_)
    require(!s.empty() && s.size() <= 1024, ErrorKind::bad_argument, "stop", "a stop text has ", s.size(),
            " bytes; it has 1 to 1024");
}

/// The first `end` held bytes as text. Unless it is the last, a code point that may still go on is left.
std::string TextStream::shown(std::size_t end, bool last) {
  std::string out;
  std::size_t at = 0;
  while (at < end) {
    const CodePoint c = decode_utf8(std::string_view(held_).substr(0, end), static_cast<Index>(at));
    const bool cut = !c.valid && static_cast<std::size_t>(c.end) == end;
    if (cut && !last) {
      // Broken up to here: more bytes may complete it, unless nothing that begins so can be completed.
      const auto lead = static_cast<unsigned char>(held_[at]);
      const std::size_t whole = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
      if (lead >= 0xc2 && lead < 0xf5 && end - at < whole) break;
    }
    if (c.valid)
      out += held_.substr(at, static_cast<std::size_t>(c.end) - at);
    else
      append_utf8(out, kReplacement);
    at = static_cast<std::size_t>(c.end);
  }
  held_.erase(0, at);
  return out;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  const std::size_t old = held_.size();
  held_ += bytes;
  // The earliest end of any stop text; of those that end there, the longest.
  for (std::size_t end = old + 1; end <= held_.size() && !stopped_; ++end) {
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i)
      if (stops_[i].size() > longest && std::string_view(held_).substr(0, end).ends_with(stops_[i]))
        longest = stops_[i].size(), stop_index_ = static_cast<int>(i);
    stopped_ = longest > 0;
    if (stopped_) held_.resize(end - longest);
  }
  if (stopped_) return shown(held_.size(), true);
  // The longest tail that begins a stop text waits.
  std::size_t waiting = 0;
  for (const std::string& s : stops_)
    for (std::size_t n = std::min(s.size() - 1, held_.size()); n > waiting; --n)
      if (held_.ends_with(std::string_view(s).substr(0, n))) waiting = n;
  return shown(held_.size() - waiting, false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  return shown(held_.size(), true);
}

}  // namespace headwise
