// The special token ids that tokenizer_config.json names.
#pragma once
#include "shardwise/text/json_fields.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// Returns `ids` updated with the bos_token, eos_token, pad_token and unk_token of `config`, the object in
/// tokenizer_config.json. Throws c10::ValueError naming the field if a value is not a string or an
/// AddedToken, or not a token of `tokenizer`.
SpecialIds special_ids_from_config(const JsonPart& config, const Tokenizer& tokenizer, SpecialIds ids);

}  // namespace shardwise::text
