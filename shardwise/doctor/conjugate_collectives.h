// Checks collectives and conjugate collectives on this group, with small values that every rank can compute
// for all ranks.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Checks all_reduce (ranks summed in order with one rounding; short and long, dense and strided messages)
/// and forward and backward of f, f*, g, g* and the other conjugate collectives (parallel/collectives.h),
/// which must not modify their inputs. Collective. Results must be bit-equal, in fp64, fp32 and bf16.
Check check_conjugate_collectives(const comm::Group& group);

}  // namespace shardwise::doctor
