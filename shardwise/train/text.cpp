#include "shardwise/train/text.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "shardwise/base/files.h"
#include "shardwise/text/token_file.h"

namespace shardwise::train {

using std::filesystem::path;

namespace {

constexpr const char* kModels[] = {"tokenizer.json", "tokenizer.model"};  // the former goes first
constexpr const char* kBeside[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                   "chat_template.jinja"};

bool has_tokenizer(const path& folder) {
  return base::exists(folder / kModels[0]) || base::exists(folder / kModels[1]);
}

/// Where `name`, a folder or a file, has the tokenizer itself.
path model_file(const path& name) {
  if (!base::is_folder(name)) return name;
  return name / (base::exists(name / kModels[0]) ? kModels[0] : kModels[1]);
}

std::map<std::string, std::string> files_of(const path& model) {
  const bool is_json = model.extension() == ".json";
  std::map<std::string, std::string> files{{kModels[is_json ? 0 : 1], base::read_text(model)}};
  for (const char* name : kBeside) {
    const path beside = model.parent_path() / name;
    if (base::exists(beside)) files[name] = base::read_text(beside);
  }
  return files;
}

std::string chosen_tokenizer(const Options& options, const std::optional<path>& folder) {
  if (options.tokenizer) return *options.tokenizer;
  return folder && has_tokenizer(*folder) ? folder->string() : "bytes";
}

}  // namespace

Text::Text(const Options& options, const std::optional<path>& folder) {
  const std::string tokenizer = chosen_tokenizer(options, folder);
  const bool is_bytes = tokenizer == "bytes";
  if (options.tokens) {
    tokens_ = std::make_unique<text::TokenFile>(*options.tokens);
  } else {
    corpus_.emplace(options.text);
    if (is_bytes) {
      tokens_ = std::make_unique<text::ByteTokens>(*corpus_);
    } else {
      tokens_ = std::make_unique<text::EncodedTokens>(*corpus_, *text::load_tokenizer(tokenizer));
    }
  }
  if (!is_bytes) tokenizer_files_ = files_of(model_file(tokenizer));
}

std::string Text::description() const {
  if (!corpus_) return fmt::format("{} tokens", tokens_->size());
  const std::string text = fmt::format("{:.1f} MB of text in {} files",
                                       static_cast<double>(corpus_->size()) / 1e6, corpus_->file_count());
  return tokenizer_files_.empty() ? text : fmt::format("{}, {} tokens", text, tokens_->size());
}

std::map<std::string, std::string> tokenizer_files_in(const path& folder) {
  return has_tokenizer(folder) ? files_of(model_file(folder)) : std::map<std::string, std::string>();
}

}  // namespace shardwise::train
