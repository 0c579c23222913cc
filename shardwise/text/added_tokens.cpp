#include "shardwise/text/added_tokens.h"

#include <algorithm>

#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

// What \w is in Rust, where single_word comes from.
constexpr const char* kWordCharacter = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])";

AddedToken read_added_token(const JsonPart& json) {
  json.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  if (json.text("content").empty()) refuse(json.label("content"), "a text that is not empty", "");
  return {token_id(json.at("id"), json.label("id")),
          json.text("content"),
          json.flag("single_word", false),
          json.flag("lstrip", false),
          json.flag("rstrip", false),
          json.flag("normalized", true),
          json.flag("special", false)};
}

/// Not before `floor`.
size_t begin_of_blanks(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t at = character_before(text, end);
    if (!is_white_space(code_point(text, at))) break;
    end = at;
  }
  return std::max(end, floor);
}

size_t end_of_blanks(std::string_view text, size_t at) {
  while (at < text.size() && is_white_space(code_point(text, at))) at += utf8_unit(text, at).length;
  return at;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const JsonPart& file) {
  std::vector<AddedToken> tokens;
  if (!file.has("added_tokens")) return tokens;
  for (const JsonPart& token : file.parts("added_tokens")) tokens.push_back(read_added_token(token));
  return tokens;
}

AddedTokenFinder::AddedTokenFinder() : nodes_(1), word_(kWordCharacter, "tokenizer: single_word") {}

void AddedTokenFinder::add(const AddedToken& token, const std::string& pattern) {
  uint32_t node = 0;
  begins_[static_cast<uint8_t>(pattern.at(0))] = true;
  for (const char byte : pattern) {
    auto& next = nodes_[node].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](const auto& to) { return to.first == byte; });
    if (found != next.end()) {
      node = found->second;
      continue;
    }
    next.emplace_back(byte, static_cast<uint32_t>(nodes_.size()));
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  nodes_[node].token = &token;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  Match longest{nullptr, 0};
  const Node* node = nodes_.data();
  for (size_t i = at; i < text.size(); ++i) {
    const auto& next = node->next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](const auto& to) { return to.first == text[i]; });
    if (found == next.end()) break;
    node = &nodes_[found->second];
    if (node->token) longest = {node->token, i + 1 - at};
  }
  return longest;
}

bool AddedTokenFinder::is_word_beside(std::string_view text, Span match) const {
  const auto is_word = [&](size_t at) {
    const auto character = text.substr(at, utf8_unit(text, at).length);
    return word_.find(character, 0).has_value();
  };
  return (match.begin > 0 && is_word(character_before(text, match.begin))) ||
         (match.end < text.size() && is_word(match.end));
}

void AddedTokenFinder::cut(std::string_view text, std::vector<Stretch>& stretches) const {
  size_t done = 0, blanks_end = 0;  // all up to there are blanks once a token strips them
  for (size_t at = 0; at < text.size();) {
    const bool may_begin = begins_[static_cast<uint8_t>(text[at])];
    const Match match = may_begin ? longest_at(text, at) : Match{nullptr, 0};
    if (!match.token) {
      ++at;
      continue;
    }
    Span span{at, at + match.length};
    at = span.end;
    if (match.token->is_single_word && is_word_beside(text, span)) continue;
    if (match.token->strips_left) span.begin = begin_of_blanks(text, span.begin, done);
    if (match.token->strips_right) {
      if (span.end > blanks_end) blanks_end = end_of_blanks(text, span.end);
      span.end = blanks_end;
    }
    if (done < span.begin) stretches.push_back({{done, span.begin}, nullptr});
    stretches.push_back({span, match.token});
    done = span.end;
  }
  if (done < text.size()) stretches.push_back({{done, text.size()}, nullptr});
}

}  // namespace shardwise::text
