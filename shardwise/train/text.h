// What a run trains on: files and a tokenizer, or ids that were made before.
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

class Text {
 public:
  /// `directory`: the checkpoint that is resumed or begun from; where no tokenizer is named, its own is used,
  /// and where it has none, bytes. Errors: c10::ValueError naming flag or file.
  Text(const Options& options, const std::optional<std::filesystem::path>& directory);
  Text(const Text&) = delete;

  const text::TokenSource& tokens() const { return *tokens_; }
  /// For people: how much it is.
  std::string description() const;
  /// Of the files of text.
  std::vector<std::string> paths() const { return corpus_ ? corpus_->paths() : std::vector<std::string>(); }
  /// What turns ids back into text, by name: copied into checkpoints. None for bytes; of ids that come
  /// without a tokenizer, a file that says so.
  const std::map<std::string, std::string>& tokenizer_files() const { return tokenizer_files_; }

 private:
  std::optional<text::Corpus> corpus_;  // none where ids are given
  std::unique_ptr<text::TokenSource> tokens_;
  std::map<std::string, std::string> tokenizer_files_;
};

/// The tokenizer's files in a checkpoint's directory, as Text has them.
std::map<std::string, std::string> tokenizer_files_in(const std::filesystem::path& directory);

}  // namespace shardwise::train
