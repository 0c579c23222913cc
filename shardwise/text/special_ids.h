// The special ids that tokenizer_config.json beside a tokenizer's file names.
#pragma once
#include <string>

#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// `ids` with what the file in `folder`, if there, says of bos_token, eos_token, pad_token and unk_token;
/// each is a string, or an object with its `content`. Errors: c10::ValueError for one that is no token.
SpecialIds named_special_ids(const std::string& folder, const Tokenizer& tokenizer, SpecialIds ids);

}  // namespace shardwise::text
