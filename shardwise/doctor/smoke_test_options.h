// Inputs and options of the training smoke test, chosen so that an error in any of them changes the result.
#pragma once
#include <filesystem>

#include "shardwise/comm/group.h"
#include "shardwise/config/config.h"
#include "shardwise/plan/workload.h"
#include "shardwise/train/options.h"

namespace shardwise::doctor {

struct TrainingSmokeTest {
  model::Config config;             // of the doctor's target
  at::ScalarType dtype;             // fp32 or bf16
  std::filesystem::path directory;  // shared by all ranks; a few MB are written to it
  uint64_t seed = 0;
};

/// Writes the training text and the small model's config.json. Errors: base::FileError.
void write_inputs(const TrainingSmokeTest& smoke_test);

/// Returns options with two micro-batches per step, clipping, weight decay and a warmup longer than the run,
/// without dropout: each step has its own learning rate, and a formula can follow the optimizer.
train::Options smoke_test_options(const TrainingSmokeTest& smoke_test, plan::Parallelism parallelism, int tp);

/// Returns the options of the same run, resumed from a checkpoint.
train::Options resume_options(train::Options options, const std::filesystem::path& checkpoint, int tp);

}  // namespace shardwise::doctor
