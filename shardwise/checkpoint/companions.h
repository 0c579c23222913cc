// The files that tell of a model's tokens and lie beside its weights: what a copy of the model needs too.
#pragma once

namespace shardwise::checkpoint {

/// The tokenizer itself, of which a directory uses the first.
inline constexpr const char* kTokenizers[] = {"tokenizer.json", "tokenizer.model"};
/// What is read with it.
inline constexpr const char* kBesideTokenizer[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "chat_template.json"};
/// Stands for a tokenizer that nobody has named: the checkpoint tells that it was not bytes.
inline constexpr const char* kUnnamedTokenizer = "unnamed_tokenizer.json";
/// How the model's makers would have texts continued.
inline constexpr const char* kGenerationConfig = "generation_config.json";

}  // namespace shardwise::checkpoint
