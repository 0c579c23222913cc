#include "shardwise/text/piece_trie.h"

#include <algorithm>
#include <deque>

namespace shardwise::text {
namespace {

/// The sorted pieces [begin, end), which pass through a node at `depth`.
struct Pending {
  uint32_t node;
  size_t begin, end, depth;
};

uint8_t byte_at(std::string_view piece, size_t depth) {
  return static_cast<uint8_t>(piece[depth]);
}

}  // namespace

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, uint32_t>> pieces) : nodes_(1) {
  std::sort(pieces.begin(), pieces.end());  // a piece precedes those that it begins
  // In the order of the nodes, so that the children of each are consecutive.
  for (std::deque<Pending> pending{{kRoot, 0, pieces.size(), 0}}; !pending.empty(); pending.pop_front()) {
    auto [node, begin, end, depth] = pending.front();
    if (begin < end && pieces[begin].first.size() == depth) nodes_[node].id = pieces[begin++].second;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const uint8_t byte = byte_at(pieces[begin].first, depth);
      size_t next = begin;
      while (next < end && byte_at(pieces[next].first, depth) == byte) ++next;
      pending.push_back({static_cast<uint32_t>(nodes_.size()), begin, next, depth + 1});
      nodes_.push_back({0, 0, kNone, byte});
      ++nodes_[node].children;
      begin = next;
    }
  }
}

uint32_t PieceTrie::child(uint32_t node, char byte) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child, end = begin + nodes_[node].children;
  const auto value = static_cast<uint8_t>(byte);
  const auto found = std::lower_bound(begin, end, value, [](const Node& n, uint8_t b) { return n.byte < b; });
  return found != end && found->byte == value ? static_cast<uint32_t>(found - nodes_.begin()) : kNone;
}

size_t PieceTrie::longest_at(std::string_view text, size_t at) const {
  size_t length = 0;
  uint32_t node = kRoot;
  for (size_t i = at; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == kNone) break;
    if (id(node) != kNone) length = i + 1 - at;
  }
  return length;
}

}  // namespace shardwise::text
