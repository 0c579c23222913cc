// Numbers of a file that are none, or infinite: found where a rank has read them to.
#pragma once
#include <vector>

#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/weight_files.h"

namespace shardwise::checkpoint {

/// After read_entry, of the same arguments. Cost: one pass over what `rank` holds of `entry`, by all its
/// threads; no memory. Errors: c10::ValueError naming the file, the tensor and the first number that is not
/// finite in the slice's dtype.
void check_finite(const Entry& entry, const std::vector<Source>& parts, int rank);

}  // namespace shardwise::checkpoint
