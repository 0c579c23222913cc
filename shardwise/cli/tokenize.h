// The options of `shardwise tokenize`, and its two modes: lines and files.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/text/tokenizer.h"

namespace shardwise::cli {

/// lines, json_lines and decode convert lines of standard input; files converts files.
enum class TokenizeMode { lines, json_lines, decode, files };

struct TokenizeOptions {
  TokenizeMode mode = TokenizeMode::files;
  std::optional<std::string> tokenizer, out, end_token;
  std::vector<std::string> text;
  bool special_tokens = true, json = false;

  text::SpecialTokens specials() const {
    return special_tokens ? text::SpecialTokens::with : text::SpecialTokens::without;
  }
};

/// Converts standard input to standard output, line by line. Errors: c10::ValueError beginning with the line
/// number.
void tokenize_lines(const text::Tokenizer& tokenizer, const TokenizeOptions& options);
/// Writes the ids of the files of `text` to `out`, and a summary to standard output. Errors: c10::ValueError,
/// before anything is written, for files that cannot be read or written or are too long.
void tokenize_files(const text::Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace shardwise::cli
