// What `shardwise tokenize` was asked for, and its two ways of working.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

/// A line each of standard input, or files.
enum class TokenizeMode { kLines, kJsonLines, kDecode, kFiles };

struct TokenizeOptions {
  TokenizeMode mode = TokenizeMode::kFiles;
  std::optional<std::string> tokenizer, out, end_token;
  std::vector<std::string> text;
  bool special_tokens = true, json = false;

  text::Specials specials() const {
    return special_tokens ? text::Specials::kWith : text::Specials::kWithout;
  }
};

/// Standard input to standard output. Errors: c10::ValueError beginning with the line's number.
void tokenize_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& options);
/// `text` to `out`, and a summary to standard output. Errors: c10::ValueError, before anything is written,
/// for files that cannot be read or written, or are too long.
void tokenize_files(const text::Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace shardwise::cli
