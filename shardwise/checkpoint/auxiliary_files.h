// The auxiliary files of a model directory: tokenizer and generation settings, which a copy of the model
// needs.
#pragma once

namespace shardwise::checkpoint {

/// Tokenizer files. A directory's tokenizer is the first one that exists.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model"};
/// Auxiliary files of the tokenizer.
inline constexpr const char* kTokenizerAuxiliaryFiles[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "chat_template.json"};
/// Marker file: the model was trained on token ids from an unnamed tokenizer, not on bytes.
inline constexpr const char* kUnnamedTokenizer = "unnamed_tokenizer.json";
/// Default generation parameters of the model.
inline constexpr const char* kGenerationConfig = "generation_config.json";

}  // namespace shardwise::checkpoint
