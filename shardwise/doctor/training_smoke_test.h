// Trains a small model of the same architecture for a few steps. Checks what one micro-batch cannot: the
// training text, the optimizer, checkpoints, the family's formulas, and generation.
#pragma once
#include <vector>

#include "shardwise/doctor/report.h"
#include "shardwise/doctor/small_model.h"

namespace shardwise::doctor {

/// Runs the trainer under TP, and under TP+SP with save and resume. Collective. Returns the checks "training
/// text" and "optimizer" of both runs, "checkpoint", "formula", and those of inference_checks.h, complete on
/// rank 0. Cost: a few MB in the directory, some collectives on tensors of kilobytes. Errors: base::FileError
/// if the directory cannot be written.
std::vector<Check> run_training_smoke_test(const TrainingSmokeTest& smoke_test, const comm::Group& group);

}  // namespace shardwise::doctor
