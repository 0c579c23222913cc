// Checks that each axis of a mesh over this group has the correct ranks.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Checks for the meshes dp=1 × tp=n and tp=n × dp=1 that the group of tp has all ranks, and that of dp has
/// this rank only. Collective.
Check check_mesh(const comm::Group& group);

}  // namespace shardwise::doctor
