#include "shardwise/text/added_tokens.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

// Rust's \w, which single_word uses.
constexpr const char* kWordCharacter = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])";

AddedToken read_added_token(const JsonPart& json) {
  json.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  if (json.text("content").empty()) throw_invalid(json.label("content"), "a nonempty string", "");
  return {token_id(json.at("id"), json.label("id")),
          json.text("content"),
          json.flag("single_word", false),
          json.flag("lstrip", false),
          json.flag("rstrip", false),
          json.flag("normalized", true),
          json.flag("special", false)};
}

/// Returns the start of the whitespace that ends at `end`, at least `floor`.
size_t begin_of_whitespace(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t at = character_before(text, end);
    if (!is_white_space(code_point(text, at))) break;
    end = at;
  }
  return std::max(end, floor);
}

size_t end_of_whitespace(std::string_view text, size_t at) {
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

void check_added_token(size_t bytes, size_t all_bytes, const std::string& label) {
  TORCH_CHECK_VALUE(bytes <= kMaxAddedTokenBytes && all_bytes <= kMaxAddedTokensBytes, label,
                    " must have at most ", kMaxAddedTokenBytes, " bytes, and all added tokens at most ",
                    kMaxAddedTokensBytes, "; got ", bytes, " and ", all_bytes, " [SW0681]");
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

bool AddedTokenFinder::is_next_to_word(std::string_view text, Span match) const {
  const auto is_word = [&](size_t at) {
    const auto character = text.substr(at, utf8_unit(text, at).length);
    return word_.find(character, 0).has_value();
  };
  return (match.begin > 0 && is_word(character_before(text, match.begin))) ||
         (match.end < text.size() && is_word(match.end));
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextSegment>& segments) const {
  size_t done = 0, whitespace_end = 0;  // end of the last run of whitespace that rstrip removed
  for (size_t at = 0; at < text.size();) {
    const bool may_begin = begins_[static_cast<uint8_t>(text[at])];
    const Match match = may_begin ? longest_at(text, at) : Match{nullptr, 0};
    if (!match.token) {
      ++at;
      continue;
    }
    Span span{at, at + match.length};
    at = span.end;
    if (match.token->single_word && is_next_to_word(text, span)) continue;
    if (match.token->lstrip) span.begin = begin_of_whitespace(text, span.begin, done);
    if (match.token->rstrip) {
      if (span.end > whitespace_end) whitespace_end = end_of_whitespace(text, span.end);
      span.end = whitespace_end;
    }
    if (done < span.begin) segments.push_back({{done, span.begin}, nullptr});
    segments.push_back({span, match.token});
    done = span.end;
  }
  if (done < text.size()) segments.push_back({{done, text.size()}, nullptr});
}

}  // namespace shardwise::text
