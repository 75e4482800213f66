// HeadPlan: which heads of which layers are cut, as a value, as a file, and checked against a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One head of a model.
struct HeadName {
  Index layer = 0, head = 0;
  friend bool operator==(const HeadName&, const HeadName&) = default;
};

struct HeadPlan {
  std::vector<Index> heads = {};             // of the whole model, by layer
  std::vector<std::vector<Index>> cut = {};  // by layer, ascending

  explicit HeadPlan(std::vector<Index> all = {}) : heads(std::move(all)), cut(heads.size()) {}
  void take_out(const HeadName& head);
  bool has(const HeadName& head) const;
  Index left(Index layer) const;
  Index left() const;
  std::vector<Index> kept(Index layer) const;
};

/// {"heads": [8, 8], "cut": {"0": [1, 2]}}
std::string plan_text(const HeadPlan& plan);
/// The inverse, for a model of `heads` by layer. Refused: other numbers of heads, heads the model has not, a
/// model that keeps none.
HeadPlan parse_plan(std::string_view json, std::string_view where, const std::vector<Index>& heads);
/// Refuses a model that keeps no head, in one sentence; of a layer that keeps none the residual path goes on.
void check_plan(const HeadPlan& plan, std::string_view op);

}  // namespace headwise
#pragma GCC visibility pop
