// Every way to split a training step over a cluster, ranked by time, with a reason for each that is refused.
#pragma once
#include <optional>

#include "shardwise/plan/training_plan.h"

namespace shardwise::plan {

/// Degrees that the search must keep; nullopt: it tries all.
struct Pins {
  std::optional<int64_t> tp;                // tensor parallelism
  std::optional<int64_t> cp;                // context parallelism
  std::optional<int64_t> pp;                // pipeline stages
  std::optional<int64_t> dp;                // data parallelism
  std::optional<int64_t> ep;                // expert parallelism
  std::optional<int64_t> micro_batch_size;  // sequences
  std::optional<int64_t> chunks;            // of a stage's blocks
  std::optional<ZeroStage> zero;            // what data-parallel ranks split
  std::optional<Recompute> recompute;       // what backward recomputes
  std::optional<bool> sequence_parallel;    // without effect at tp 1
  bool split_batch = false;                 // only plans with this schedule, which are not tried otherwise
};

/// A split that cannot run.
struct Refused {
  Degrees degrees;           // of the split
  std::string reason;        // one
  int64_t needed_bytes = 0;  // if the reason is memory
};

/// What the search found.
struct SearchResult {
  std::vector<TrainingPlan> plans;  // that fit, fastest first
  std::vector<Refused> refused;     // in the order of the search
};

/// Tries every combination of tp, cp, pp and dp whose product is the number of ranks, with every ep that
/// divides tp·cp·dp, every micro-batch of a power of two sequences, ZeRO stage, number of chunks per stage,
/// and recomputation, with and without sequence parallelism: it needs less memory and gathers its inputs
/// again in backward. Errors: c10::ValueError if a size of the task is not positive, if a step has more than
/// 2³⁴ tokens, if the pinned degrees do not divide the ranks, if a pinned ep is above the experts of a block,
/// if `memory_cap` is not positive, or if split batches are
/// wanted of a model with experts, on a machine whose ranks share memory, with a micro-batch of 1 or
/// with full recomputation.
SearchResult search(const TrainingTask& task, const Machine& machine, const Pins& pins,
                    std::optional<int64_t> memory_cap);

}  // namespace shardwise::plan
