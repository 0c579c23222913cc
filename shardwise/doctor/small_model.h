// A small model of the same architecture that trains in milliseconds, and the inputs and options of the
// training smoke test, chosen so that an error in any of them changes the result.
#pragma once
#include <c10/core/ScalarType.h>

#include <filesystem>

#include "shardwise/config/config.h"
#include "shardwise/plan/workload.h"
#include "shardwise/train/options.h"

namespace shardwise::doctor {

/// Sequence length of the small model: longer than its window, and not a multiple of a usual number of ranks.
inline constexpr int64_t kSmallSeqLen = 19;

/// Standard deviation of the weights of small models.
inline constexpr double kInitStd = 0.3;

/// Returns `config` with two layers, small odd sizes and the vocabulary of bytes. What defines the
/// architecture stays: heads, biases, norms, activation, positions, a tied head, and sliding windows, which
/// are shortened. A large standard deviation of the weights makes losses depend clearly on the tokens.
config::Config shrink(const config::Config& config);

/// The model of the training smoke test, and its directory.
struct TrainingSmokeTest {
  config::Config config;            // of the doctor's target
  at::ScalarType dtype;             // fp32 or bf16
  std::filesystem::path directory;  // shared by all ranks; a few MB are written to it
  uint64_t seed = 0;
};

/// Writes the training text and the small model's config.json. Errors: base::FileError.
void write_inputs(const TrainingSmokeTest& smoke_test);

/// Returns options with two micro-batches per step, clipping, weight decay and a warmup longer than the run,
/// without dropout: each step has its own learning rate, and a formula can follow the optimizer.
train::TrainOptions smoke_test_options(const TrainingSmokeTest& smoke_test, plan::Parallelism parallelism,
                                       int tp);

/// Returns the options of the same run, resumed from a checkpoint.
train::TrainOptions resume_options(train::TrainOptions options, const std::filesystem::path& checkpoint,
                                   int tp);

}  // namespace shardwise::doctor
