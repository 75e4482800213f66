#include "headwise/heads/scales.h"

#include <vector>

#include "headwise/base/words.h"
#include "headwise/heads/any_head.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "scales";

/// Keys of each scale; 0 stands for `all`.
std::vector<Index> read_scales(std::string_view words) {
  std::vector<Index> all;
  for (std::string_view rest = words;;) {
    const std::string_view one = trimmed(rest.substr(0, rest.find(',')));
    Index keys = 0;
    require(one == "all" || (read_value(one, keys) && keys > 0), ErrorKind::bad_argument, kOp, "\"", one,
            "\" of \"", words, "\" is no reach; give a number of tokens from 1 to ", kMostSetting,
            ", or all, as in 32,256,all");
    require(all.empty() || (all.back() > 0 && (keys == 0 || keys > all.back())), ErrorKind::bad_argument, kOp,
            "\"", words, "\" does not ascend; write the nearest reach first, as in 32,256,all");
    all.push_back(keys);
    if (rest.find(',') == rest.npos) break;
    rest.remove_prefix(rest.find(',') + 1);
  }
  require(all.size() < 3 || (all.size() == 3 && all.back() == 0), ErrorKind::bad_argument, kOp, "\"", words,
          "\" has more than two windows; give at most two and all, as in 32,256,all");
  return all;
}

std::string one_layer(std::string_view heads, const std::vector<Index>& scales) {
  const Index count = heads_in(heads), share = count / static_cast<Index>(scales.size());
  require(share > 0, ErrorKind::bad_argument, kOp, "\"", heads, "\" has ", count, " heads for ",
          scales.size(), " scales; give at least one head a scale");
  const bool windows = scales.back() > 0;  // no head sees all
  const Index near = windows && scales.size() == 1 ? count : scales[0] > 0 ? share : 0;
  const Index middle = scales.size() == 1 || scales[1] == 0 ? 0 : windows ? count - near : share;
  if (near == 0) return std::string(heads);
  std::string s = text(heads, "+reach:near=", scales[0], ",near_heads=", near, ",middle_heads=", middle);
  return middle > 0 ? text(s, ",middle=", scales[1]) : s;
}

}  // namespace

std::string with_scales(std::string_view heads, std::string_view scales) {
  const std::vector<Index> keys = read_scales(scales);
  std::string all;
  for (;;) {
    const std::string_view one = heads.substr(0, heads.find(';'));
    all += one_layer(trimmed(one), keys);
    if (one.size() == heads.size()) return all;
    heads.remove_prefix(one.size() + 1);
    all += "; ";
  }
}

}  // namespace headwise
