// Token ids that a caller gives.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/model/config.h"

namespace shardwise::infer {

/// Errors: c10::ValueError beginning with `whose` for an id outside [0, v).
void check_ids(const std::vector<int64_t>& ids, const model::Config& config, const std::string& whose);

}  // namespace shardwise::infer
