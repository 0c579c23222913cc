// The header that every index of ours begins with: {"format": "shardwise.shards", "version": 1, …}.
#pragma once
#include <cstdint>
#include <string>

#include "shardwise/base/json.h"

namespace shardwise::checkpoint {

/// Checks the fields "format" and "version" of the index `path`. Errors: c10::ValueError if they differ.
void check_index_format(const base::Fields& fields, const std::string& path, const std::string& format,
                        int64_t version);

}  // namespace shardwise::checkpoint
