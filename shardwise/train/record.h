// What is known of a step once it is done, and how it reads as a line of the log.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::train {

/// What one step cost one rank.
struct Usage {
  int64_t step_ns = 0;            // by the rank's own clock
  int64_t comm_ns = 0;            // inside collectives, waiting included
  int64_t wait_ns = 0;            // of that, waiting for peers
  int64_t comm_bytes = 0;         // sent (docs/algorithms.md)
  int64_t copied_bytes = 0;       // really copied to or from shared memory
  int64_t peak_memory_bytes = 0;  // most tensor bytes held at once since the rank began, private and shared
};

struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;    // trained on since step 0
  double loss = 0;       // mean over the step's tokens
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  std::vector<Usage> usage;  // of every rank
  std::string overlap;       // on or off; empty of one rank
  std::optional<double> val_loss;

  /// The largest of every figure over the ranks.
  Usage largest_usage() const;
};

/// One line of JSON without its end: step, tokens, loss, grad_norm, lr, tokens_per_s, step_ms, comm_ms,
/// wait_ms, comm_bytes, copied_bytes, peak_memory_bytes (the last five the largest over ranks), overlap where
/// there is any, and val_loss where the step was evaluated.
std::string to_json(const StepRecord& record);

}  // namespace shardwise::train
