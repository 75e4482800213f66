// PrefixTree: which full pages hold which tokens, found by comparing ids, given up in a fixed order.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {

/// A node is one full page; its children continue its tokens. One root a tenant. Ids of nodes are used again.
class PrefixTree {
 public:
  static constexpr int kNone = -1;
  using Ids = std::vector<std::int32_t>;

  int root(const std::string& tenant);
  /// The child that holds exactly these ids; kNone when there is none.
  int find(int parent, std::span<const std::int32_t> ids) const;
  /// The child that shares the longest beginning with `ids`, and how long that is; kNone when none shares
  /// any.
  std::pair<int, Index> nearest(int parent, std::span<const std::int32_t> ids) const;
  /// `ids` must not be there yet.
  int insert(int parent, std::span<const std::int32_t> ids, std::int32_t page, std::int64_t now);
  /// A held node may not go: open sequences have its page.
  void hold(int node);
  void release(int node, std::int64_t now);
  /// The page of the leaf that was unused for longest, deepest first among equals, then the highest page; the
  /// node is taken out. -1: all are held.
  std::int32_t evict();

  std::int32_t page(int node) const { return nodes_[static_cast<std::size_t>(node)].page; }
  int parent(int node) const { return nodes_[static_cast<std::size_t>(node)].parent; }
  const Ids& ids(int node) const { return nodes_[static_cast<std::size_t>(node)].ids; }
  Index holders(int node) const { return nodes_[static_cast<std::size_t>(node)].holders; }
  /// Nodes with a page, and those among them that nobody holds: all of these can be evicted, one by one.
  Index size() const { return size_; }
  Index free_to_go() const { return size_ - held_; }
  std::vector<int> all() const;

 private:
  struct Node {
    int parent = kNone;
    Ids ids;
    std::int32_t page = -1;
    Index depth = 0, holders = 0;
    std::int64_t last_use = 0;
    std::map<Ids, int> children;
    bool live = false;
  };
  using Leaf = std::tuple<std::int64_t, Index, std::int64_t, int>;  // last use, -depth, -page, node
  Leaf leaf_of(int node) const;
  bool may_go(const Node& n) const { return n.live && n.page >= 0 && n.holders == 0 && n.children.empty(); }
  int take_node();

  std::vector<Node> nodes_;
  std::vector<int> unused_;
  std::map<std::string, int> roots_;
  std::set<Leaf> leaves_;  // those that may go now
  Index size_ = 0, held_ = 0;
};

}  // namespace headwise
