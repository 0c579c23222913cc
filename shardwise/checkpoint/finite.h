// Numbers of a file that are none, or infinite: found where a rank has read them to.
#pragma once
#include <string>

#include "shardwise/checkpoint/contents.h"

namespace shardwise::checkpoint {

/// After read_entry. Cost: one pass over what `rank` holds of `entry`, by all its threads; no memory.
/// Errors: c10::ValueError naming `path`, the tensor and the first number that is not finite.
void check_finite(const Entry& entry, int rank, const std::string& path);

}  // namespace shardwise::checkpoint
