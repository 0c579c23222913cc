// The `added_tokens` of tokenizer.json: strings that are found in the text before anything cuts it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/regex.h"

namespace shardwise::text {

struct AddedToken {
  uint32_t id;
  std::string content;
  bool is_single_word, strips_left, strips_right, is_normalized, is_special;
};

/// Errors: c10::ValueError naming field and value.
std::vector<AddedToken> read_added_tokens(const JsonPart& file);

/// A stretch of text: `token`, or none of them.
struct Stretch {
  Span span;
  const AddedToken* token;
};

/// Finds tokens: leftmost first, of several there the longest. One thread at a time.
class AddedTokenFinder {
 public:
  AddedTokenFinder();
  /// `token`, which must outlive this, is found where `pattern` stands.
  void add(const AddedToken& token, const std::string& pattern);
  bool empty() const { return nodes_.size() == 1; }

  /// Cuts `text` into `stretches`; the ones between tokens are not empty.
  void cut(std::string_view text, std::vector<Stretch>& stretches) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> next;
    const AddedToken* token = nullptr;
  };
  struct Match {
    const AddedToken* token;
    size_t length;
  };
  Match longest_at(std::string_view text, size_t at) const;
  bool is_word_beside(std::string_view text, Span match) const;

  std::vector<Node> nodes_;  // a tree of bytes, the root first
  std::array<bool, 256> begins_{};
  Regex word_;
};

}  // namespace shardwise::text
