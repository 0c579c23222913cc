// Whether a mesh over this group gives every axis the ranks that it is of.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Collective: of the meshes dp=1 × tp=n and tp=n × dp=1, the group of tp is that of all ranks, and that of
/// dp each rank alone.
Audit audit_mesh(const comm::Group& group);

}  // namespace shardwise::doctor
