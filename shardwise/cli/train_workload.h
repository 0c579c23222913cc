// A training run as plan/ knows it.
#pragma once
#include "shardwise/plan/workload.h"
#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"

namespace shardwise::cli {

/// Returns the workload of a rank of pipeline stage `stage`.
plan::Workload workload_of(const train::Job& job, const comm::Mesh& mesh, int stage = 0);

}  // namespace shardwise::cli
