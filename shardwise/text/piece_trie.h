// A trie over the bytes of pieces, to find those that begin at a position of a text.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::text {

/// A static trie; the children of a node are consecutive and sorted by byte.
class PieceTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Builds the trie of distinct nonempty pieces and their ids.
  explicit PieceTrie(std::vector<std::pair<std::string_view, uint32_t>> pieces);

  bool empty() const { return nodes_.size() == 1; }
  /// Returns the child of `node` for `byte`, or kNone.
  uint32_t child(uint32_t node, char byte) const;
  /// Returns the id of the piece that ends at `node`, or kNone.
  uint32_t id(uint32_t node) const { return nodes_[node].id; }
  /// Returns the length of the longest piece that begins at `at`, or 0.
  size_t longest_at(std::string_view text, size_t at) const;

 private:
  struct Node {
    uint32_t first_child = 0, children = 0;
    uint32_t id = kNone;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
};

}  // namespace shardwise::text
