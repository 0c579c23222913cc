// The special ids that tokenizer_config.json beside a tokenizer's file names.
#pragma once
#include "shardwise/text/json_fields.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// `ids` with what `config`, that file's object, says of bos_token, eos_token, pad_token and unk_token.
/// Errors: c10::ValueError naming the field for what is neither a string nor an AddedToken, and for what is
/// no token of `tokenizer`.
SpecialIds named_special_ids(const JsonPart& config, const Tokenizer& tokenizer, SpecialIds ids);

}  // namespace shardwise::text
