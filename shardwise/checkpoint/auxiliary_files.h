// The auxiliary files of a model directory: tokenizer and generation settings, which a copy of the model
// needs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwise::checkpoint {

/// Tokenizer files. A directory's tokenizer is the first one that exists.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model"};
/// Auxiliary files of the tokenizer.
inline constexpr const char* kTokenizerAuxiliaryFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "chat_template.json"};
/// The directory of the chat templates that are named by their files, *.jinja.
inline constexpr const char* kAdditionalChatTemplates = "additional_chat_templates";
/// Marker file: the model was trained on token ids from an unnamed tokenizer, not on bytes.
inline constexpr const char* kUnnamedTokenizer = "unnamed_tokenizer.json";
/// Default generation parameters of the model.
inline constexpr const char* kGenerationConfig = "generation_config.json";

/// Returns the contents of the file `name` in `directory`, to copy it. Errors: c10::ValueError if it is a
/// link to a file outside of the directory (for a snapshot in Hugging Face's cache, also outside of the
/// repository's blobs): a directory from an untrusted source could link to the user's keys, and the copy is
/// made to be published.
std::string read_auxiliary_file(const std::filesystem::path& directory, const std::string& name);
/// Writes the file `name`, which may be in a directory that does not exist yet. Errors: base::FileError.
void write_auxiliary_file(const std::filesystem::path& directory, const std::string& name,
                          const std::string& text);

/// Returns the names of the tokenizer's auxiliary files that `directory` has, relative to it, with those of
/// kAdditionalChatTemplates. Errors: c10::ValueError if the latter cannot be listed.
std::vector<std::string> tokenizer_auxiliary_files_in(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
