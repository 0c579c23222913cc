// All figures of a training run as one JSON document: what tools/report draws its page from.
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/report.h"

namespace shardwise::cli {

/// Fields: run (description, tp, sequence_parallel, sizes), steps (loss, val_loss, times by rank), ranks
/// (bytes sent and memory by class, measured and by formula), parameters (shape, and that of each rank's
/// slice).
std::string figures_json(const train::Job& job, const std::vector<train::StepRecord>& steps,
                         const TrainReport& report);

}  // namespace shardwise::cli
