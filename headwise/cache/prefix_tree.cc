#include "headwise/cache/prefix_tree.h"

#include <algorithm>

namespace headwise {

int PrefixTree::take_node() {
  if (unused_.empty()) {
    nodes_.emplace_back();
    return static_cast<int>(nodes_.size()) - 1;
  }
  const int node = unused_.back();
  unused_.pop_back();
  nodes_[static_cast<std::size_t>(node)] = {};
  return node;
}

int PrefixTree::root(const std::string& tenant) {
  const auto at = roots_.find(tenant);
  if (at != roots_.end()) return at->second;
  const int node = take_node();
  nodes_[static_cast<std::size_t>(node)].live = true;
  return roots_.emplace(tenant, node).first->second;
}

PrefixTree::Leaf PrefixTree::leaf_of(int node) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  return {n.last_use, -n.depth, -std::int64_t{n.page}, node};
}

int PrefixTree::find(int parent, std::span<const std::int32_t> ids) const {
  const auto& children = nodes_[static_cast<std::size_t>(parent)].children;
  const auto at = children.find(Ids(ids.begin(), ids.end()));
  return at == children.end() ? kNone : at->second;
}

std::pair<int, Index> PrefixTree::nearest(int parent, std::span<const std::int32_t> ids) const {
  const auto& children = nodes_[static_cast<std::size_t>(parent)].children;
  std::pair<int, Index> best{kNone, 0};
  // In the order of ids the longest shared beginning stands right before or behind.
  const auto look = [&](const std::pair<const Ids, int>& child) {
    const auto end = std::mismatch(ids.begin(), ids.end(), child.first.begin(), child.first.end()).first;
    if (const Index shared = end - ids.begin(); shared > best.second) best = {child.second, shared};
  };
  const auto at = children.lower_bound(Ids(ids.begin(), ids.end()));
  if (at != children.end()) look(*at);
  if (at != children.begin()) look(*std::prev(at));
  return best;
}

int PrefixTree::insert(int parent, std::span<const std::int32_t> ids, std::int32_t page, std::int64_t now) {
  const int node = take_node();
  leaves_.erase(leaf_of(parent));
  Node& n = nodes_[static_cast<std::size_t>(node)];
  Node& up = nodes_[static_cast<std::size_t>(parent)];
  n.parent = parent, n.ids = Ids(ids.begin(), ids.end()), n.page = page, n.depth = up.depth + 1;
  n.last_use = now, n.live = true;
  up.children.emplace(n.ids, node);
  ++size_;
  leaves_.insert(leaf_of(node));
  return node;
}

void PrefixTree::hold(int node) {
  Node& n = nodes_[static_cast<std::size_t>(node)];
  if (may_go(n)) leaves_.erase(leaf_of(node));
  if (n.holders++ == 0) ++held_;
}

void PrefixTree::release(int node, std::int64_t now) {
  Node& n = nodes_[static_cast<std::size_t>(node)];
  n.last_use = now;
  if (--n.holders == 0) --held_;
  if (may_go(n)) leaves_.insert(leaf_of(node));
}

std::int32_t PrefixTree::evict() {
  if (leaves_.empty()) return -1;
  const int node = std::get<3>(*leaves_.begin());
  leaves_.erase(leaves_.begin());
  Node& n = nodes_[static_cast<std::size_t>(node)];
  const std::int32_t page = n.page;
  const int parent = n.parent;
  Node& up = nodes_[static_cast<std::size_t>(parent)];
  up.children.erase(n.ids);
  if (may_go(up)) leaves_.insert(leaf_of(parent));
  n = {};
  unused_.push_back(node);
  --size_;
  return page;
}

std::vector<int> PrefixTree::all() const {
  std::vector<int> out;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].live && nodes_[i].page >= 0) out.push_back(static_cast<int>(i));
  return out;
}

}  // namespace headwise
