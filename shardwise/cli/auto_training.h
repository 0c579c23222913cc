// The choice of `train --auto`: the fastest split of a step over the ranks of this host.
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/auto_host.h"
#include "shardwise/train/options.h"

namespace shardwise::cli {

/// Sets the degrees of all axes, micro-batches, sequence parallelism and recomputation, as far as `flags` do
/// not give them, to the fastest that fit, and logs them; a step keeps its sequences. Returns the flags with
/// which the ranks start. Errors: c10::ValueError for options whose times are not planned, and if nothing
/// fits; those of host_of and train::start_of.
std::vector<std::string> choose_(train::TrainOptions& options, const Flags& flags,
                                 const AutoOptions& automatic);

}  // namespace shardwise::cli
