// The record of one training step and its line in the log.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/train/axes.h"

namespace shardwise::train {

/// What a rank spent of one step in the group of one axis of the mesh.
struct AxisUsage {
  int64_t comm_ns = 0;                  // in collectives and messages, including waiting
  std::optional<int64_t> wait_ns = {};  // the part of comm_ns spent waiting for peers
  int64_t comm_bytes = 0;               // sent
};

/// The cost of one step on one rank. Over MPI waiting and copies are not counted, and have no value.
struct Usage {
  int64_t step_ns = 0;                       // by the rank's local clock
  int64_t comm_ns = 0;                       // in collectives, including waiting
  std::optional<int64_t> wait_ns = {};       // the part of comm_ns spent waiting for peers
  int64_t comm_bytes = 0;                    // sent (docs/algorithms.md)
  std::optional<int64_t> copied_bytes = {};  // copied to or from shared memory
  int64_t peak_memory_bytes = 0;             // peak tensor bytes since the rank started, private and shared
  /// In the order of kAxes. Sums over several axes, of loss and norm, count for an axis only if the others
  /// have one rank each.
  std::array<AxisUsage, kAxes.size()> axes = {};
};

/// The results and costs of one training step.
struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;    // training tokens since step 0
  double loss = 0;       // mean over the step's tokens
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  std::vector<Usage> usage;  // by rank
  std::string overlap;       // on or off; empty on one rank
  std::optional<double> val_loss;

  /// Returns the maximum of each field over the ranks.
  Usage largest_usage() const;
};

/// Returns one line of JSON without newline: step, tokens, loss, grad_norm, lr, tokens_per_s, step_ms,
/// comm_ms, wait_ms, comm_bytes, copied_bytes, peak_memory_bytes (the last five are maxima over ranks;
/// wait_ms and copied_bytes only if counted), axes with comm_ms, wait_ms and comm_bytes of each axis that was
/// used, maxima too, overlap if not empty, and val_loss if the step was evaluated.
std::string to_json(const StepRecord& record);

}  // namespace shardwise::train
