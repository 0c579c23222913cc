// Checks that a resumed run continues exactly as the run that saved the checkpoint.
#pragma once
#include <filesystem>

#include "shardwise/doctor/checked_run.h"

namespace shardwise::doctor {

/// Checks `checkpoint`, which `live` has just saved. Collective. Loads it on the same ranks and, on rank 0,
/// on one rank alone: weights, masters and moments must be bit-equal to those of `live`. Then runs the next
/// step of `live` and of a run resumed with `options`: loss, norm and weights must be bit-equal. Cost: one
/// full tensor at a time. Errors: those of train::Job and checkpoint::load_weights.
Check check_resume(CheckedRun& live, const std::filesystem::path& checkpoint, const train::Options& options,
                   const comm::Group& group);

}  // namespace shardwise::doctor
