// Standard input as an input of all ranks of a job.
#pragma once
#include <string>

#include "shardwise/launch/environment.h"

namespace shardwise::cli {

/// Returns all of standard input, the same on every rank. The process that will launch `tp` ranks reads it
/// and keeps a copy in memory, which the ranks inherit: a stream can be read only once.
/// Errors: c10::ValueError beginning with `flag` if another launcher started several ranks, which do not
/// all have its standard input; c10::Error if reading fails.
std::string shared_input(const std::string& flag, const launch::LaunchContext& context, int64_t tp);

}  // namespace shardwise::cli
