// All measurements of a training run as one JSON document, the input of `shardwise report` (run_file.h).
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/train_report.h"

namespace shardwise::cli {

/// Returns a JSON object with the fields run (description, tp, sequence_parallel, recompute, sizes, planned
/// and measured times), steps (loss,
/// val_loss, times by rank), ranks (bytes sent and memory by class, measured and planned), and parameters
/// (full shape, and each rank's shard shape). What the run does not count has no field: over MPI waiting,
/// copied bytes and shared memory.
std::string figures_json(const train::Job& job, const std::vector<train::StepRecord>& steps,
                         const TrainReport& report);

}  // namespace shardwise::cli
