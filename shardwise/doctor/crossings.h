// Whether the collectives, and the crossings made of them, do what their tables say on this group: on small
// values that every rank can compute for all.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Collective: the sum over the ranks in their order, with one rounding, of messages short and long, dense
/// and strided; f, f*, g, g* and the other crossings forward and backward (parallel/collectives.h), and that
/// none changes its input. In fp64, fp32 and bf16, bit for bit.
Audit audit_crossings(const comm::Group& group);

}  // namespace shardwise::doctor
