// What the memory that tensor parallelism frees is good for: the largest micro-batch, sequence or number of
// cached texts that fits with each number of ranks.
#pragma once
#include <functional>

#include "shardwise/plan/inference_plan.h"
#include "shardwise/plan/search.h"

namespace shardwise::plan {

/// Returns the largest n from 1 to `most` that fits, or 0 if 1 does not. If n fits, so must n − 1.
int64_t largest_that_fits(int64_t most, const std::function<bool(int64_t)>& fits);

/// What grows in training: the sequences of a micro-batch, or the tokens of its only sequence.
enum class Grown { micro_batch, sequence };

/// The largest micro-batch or sequence of a split.
struct LargestTraining {
  int64_t size;                  // 0: none fits
  TrainingPlan plan;             // with this size, or with 1
  double tokens_per_second = 0;  // of all ranks
};

/// Returns one entry for each tp that divides the ranks (or is pinned), without and with sequence
/// parallelism; all other ranks are data-parallel. Steps have one micro-batch, of `task.sequence_length`
/// tokens, or of one sequence of at most the model's positions. `pins` may have tp, zero and recompute.
/// Errors: those of search.
std::vector<LargestTraining> largest_training(const TrainingTask& task, const Machine& machine,
                                              const Pins& pins, std::optional<int64_t> memory_cap,
                                              Grown grown);

/// The largest number of texts whose keys and values fit.
struct LargestInference {
  int64_t texts;       // over all replicas; 0: none fits
  InferencePlan plan;  // with so many, or with one
};

/// Returns one entry for each tp that divides the ranks (or is pinned); the others are replicas.
/// `task.texts` is not read. Errors: those of evaluate.
std::vector<LargestInference> largest_inference(const InferenceTask& task, const Machine& machine,
                                                std::optional<int64_t> tp, std::optional<int64_t> memory_cap);

}  // namespace shardwise::plan
