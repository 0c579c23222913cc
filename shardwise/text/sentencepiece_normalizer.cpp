#include "shardwise/text/sentencepiece_normalizer.h"

#include "shardwise/text/growth_limit.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model,
                                                 const PieceTrie& user_defined, const std::string& where)
    : model_(model),
      user_defined_(user_defined),
      charsmap_(model.charsmap, where),
      space_(model.escapes_spaces ? kMetaspace : " ") {}

/// Returns what the next characters of `text` become, the longest match first: a user-defined piece, a rule,
/// or one character.
Charsmap::Match SentencePieceNormalizer::prefix_at(std::string_view text, size_t at) const {
  const size_t piece = user_defined_.longest_at(text, at);
  if (piece > 0) return {piece, text.substr(at, piece)};
  if (const auto rule = charsmap_.longest_at(text, at)) return *rule;
  const size_t length = utf8_unit(text, at).length;
  return {length, text.substr(at, length)};
}

void SentencePieceNormalizer::append(std::string_view text, std::string& out) const {
  for (const char c : text) {
    if (c == ' ') {
      out += space_;
    } else {
      out += c;
    }
  }
}

std::string SentencePieceNormalizer::normalize(std::string_view text) const {
  const bool removes = model_.removes_extra_spaces;
  size_t at = 0;
  while (removes && at < text.size()) {
    const Charsmap::Match prefix = prefix_at(text, at);
    if (prefix.replacement != " ") break;
    at += prefix.length;
  }
  std::string out;
  if (at == text.size()) return out;
  const GrowthLimit limit(text.size());
  out.reserve(text.size() + text.size() / 2);
  if (model_.adds_space && !model_.treats_space_as_suffix) out += space_;
  for (bool follows_space = removes; at < text.size();) {
    auto [length, replacement] = prefix_at(text, at);
    while (follows_space && replacement.starts_with(' ')) replacement.remove_prefix(1);
    append(replacement, out);
    limit.check(out.size());
    if (!replacement.empty()) follows_space = removes && replacement.ends_with(' ');
    at += length;
  }
  while (removes && out.ends_with(space_)) out.resize(out.size() - space_.size());
  if (model_.adds_space && model_.treats_space_as_suffix) out += space_;
  return out;
}

}  // namespace shardwise::text
