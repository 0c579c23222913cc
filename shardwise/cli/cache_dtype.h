// Conversion of --kv-cache-dtype to the dtype of cached keys and values.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace shardwise::cli {

/// What --kv-cache-dtype does, for its help.
inline constexpr const char* kCacheDtypeHelp =
    "of cached keys and values: auto (that of the weights), or int8 with a scale per token and head, which "
    "takes half of bf16's memory and changes results [auto]";

/// Returns int8 (at::kChar), or nothing for auto. Errors: c10::ValueError beginning with `command` and naming
/// `flag` for other values.
std::optional<at::ScalarType> cache_dtype_of(const std::string& command, const std::string& flag,
                                             const std::string& name);

}  // namespace shardwise::cli
