#include "shardwise/train/text.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/auxiliary_files.h"
#include "shardwise/text/token_file.h"

namespace shardwise::train {

using std::filesystem::path;

namespace {

/// Returns the files of the tokenizer in the file `model`, by their names in a model directory.
std::map<std::string, std::string> files_of(const path& model) {
  const path directory = model.has_parent_path() ? model.parent_path() : ".";
  std::map<std::string, std::string> files{{"tokenizer" + model.extension().string(),
                                            checkpoint::read_auxiliary_file(directory, model.filename())}};
  for (const std::string& name : checkpoint::tokenizer_auxiliary_files_in(directory)) {
    files[name] = checkpoint::read_auxiliary_file(directory, name);
  }
  return files;
}

std::string chosen_tokenizer(const TrainOptions& options, const std::optional<path>& directory) {
  if (options.tokenizer) return *options.tokenizer;
  return directory && text::tokenizer_in(*directory) ? directory->string() : "bytes";
}

}  // namespace

Text::Text(const TrainOptions& options, const std::optional<path>& directory) {
  const std::string tokenizer = chosen_tokenizer(options, directory);
  const bool is_bytes = tokenizer == "bytes";
  if (options.tokens) {
    tokens_ = std::make_unique<text::TokenFile>(*options.tokens);
  } else {
    corpus_.emplace(options.text);
    if (is_bytes) {
      tokens_ = std::make_unique<text::ByteTokens>(*corpus_);
    } else {
      auto encoded = std::make_unique<text::EncodedTokens>(*corpus_, *text::load_tokenizer(tokenizer));
      invalid_utf8_ = encoded->invalid_utf8();
      tokens_ = std::move(encoded);
    }
  }
  const bool is_unnamed =
      options.tokens && is_bytes && tokens_->vocab_size() != text::BytesTokenizer::kVocabSize;
  if (is_unnamed)
    tokenizer_files_[checkpoint::kUnnamedTokenizer] =
        fmt::format("{{\"vocab_size\": {}}}\n", tokens_->vocab_size());
  if (is_bytes) return;
  tokenizer_files_ = base::is_directory(tokenizer) ? tokenizer_files_in(tokenizer) : files_of(tokenizer);
}

std::string Text::description() const {
  if (!corpus_) return fmt::format("{} tokens", tokens_->size());
  const std::string text = fmt::format("{:.1f} MB of text in {} files",
                                       static_cast<double>(corpus_->size()) / 1e6, corpus_->file_count());
  return tokenizer_files_.empty() ? text : fmt::format("{}, {} tokens", text, tokens_->size());
}

std::map<std::string, std::string> tokenizer_files_in(const path& directory) {
  const auto file = text::tokenizer_in(directory);
  if (file) return files_of(*file);
  const path unnamed = directory / checkpoint::kUnnamedTokenizer;
  if (base::exists(unnamed))
    return {{checkpoint::kUnnamedTokenizer,
             checkpoint::read_auxiliary_file(directory, checkpoint::kUnnamedTokenizer)}};
  return {};
}

}  // namespace shardwise::train
