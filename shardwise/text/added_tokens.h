// The `added_tokens` of tokenizer.json: strings that are matched in the text before it is split.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/regex.h"

namespace shardwise::text {

/// An added token with the fields of tokenizer.json.
struct AddedToken {
  uint32_t id;
  std::string content;
  bool single_word, lstrip, rstrip, normalized, special;
};

/// The longest content of an added token, also after normalization: every position of a text is compared with
/// so many bytes.
inline constexpr size_t kMaxAddedTokenBytes = 1024;
/// The most bytes that all contents have together: each can take 64 bytes of memory.
inline constexpr size_t kMaxAddedTokensBytes = size_t{4} << 20;

/// Reads the `added_tokens` list. Throws c10::ValueError naming the field and value.
std::vector<AddedToken> read_added_tokens(const JsonPart& file);

/// Throws c10::ValueError beginning with `label` if a token's pattern, or all patterns up to it, are too
/// long.
void check_added_token(size_t bytes, size_t all_bytes, const std::string& label);

/// A segment of text: an added token, or text without added tokens if `token` is null.
struct TextSegment {
  Span span;
  const AddedToken* token;
};

/// Finds added tokens in text: leftmost, then longest match. Not thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder();
  /// Adds `token`, which must outlive this. It matches where `pattern` occurs.
  void add(const AddedToken& token, const std::string& pattern);
  bool empty() const { return nodes_.size() == 1; }

  /// Splits `text` into `segments`. Segments between tokens are not empty.
  void split(std::string_view text, std::vector<TextSegment>& segments) const;

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
  bool is_next_to_word(std::string_view text, Span match) const;

  std::vector<Node> nodes_;  // a trie over bytes; the root is first
  std::array<bool, 256> begins_{};
  Regex word_;
};

}  // namespace shardwise::text
