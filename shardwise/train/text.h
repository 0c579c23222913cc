// The training text of a run: files with a tokenizer, or a file of token ids.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/text/token_source.h"
#include "shardwise/train/options.h"

namespace shardwise::train {

/// The tokens of a run and the files of their tokenizer.
class Text {
 public:
  /// Opens the text and encodes it. Without --tokenizer, the tokenizer in `directory` (the checkpoint of
  /// --resume or --init) is used, else bytes. Throws c10::ValueError naming the flag or file.
  Text(const TrainOptions& options, const std::optional<std::filesystem::path>& directory);
  Text(const Text&) = delete;

  const text::TokenSource& tokens() const { return *tokens_; }
  /// Returns what the tokenizer replaced in the text.
  const text::InvalidUtf8& invalid_utf8() const { return invalid_utf8_; }
  /// Returns the amount of text in words, for the log.
  std::string description() const;
  /// The paths of the text files; empty for a file of token ids.
  std::vector<std::string> paths() const { return corpus_ ? corpus_->paths() : std::vector<std::string>(); }
  /// The tokenizer's files by name, which are copied into checkpoints. Empty for bytes; a marker file if the
  /// ids come from an unnamed tokenizer.
  const std::map<std::string, std::string>& tokenizer_files() const { return tokenizer_files_; }

 private:
  std::optional<text::Corpus> corpus_;  // unset for a file of token ids
  std::unique_ptr<text::TokenSource> tokens_;
  text::InvalidUtf8 invalid_utf8_;
  std::map<std::string, std::string> tokenizer_files_;
};

/// Returns the tokenizer's files in a checkpoint directory, as Text::tokenizer_files().
std::map<std::string, std::string> tokenizer_files_in(const std::filesystem::path& directory);

}  // namespace shardwise::train
