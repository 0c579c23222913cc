// Checks of token ids from the caller.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::infer {

/// Checks that all ids are in [0, v). Throws c10::ValueError with a message that starts with `whose`.
void check_token_ids(const std::vector<int64_t>& ids, const config::Config& config, const std::string& whose);

}  // namespace shardwise::infer
