// What loading a checkpoint has cost every rank, as runs say it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"

namespace shardwise::checkpoint {

struct LoadCost {
  double seconds;                     // of the slowest rank
  std::vector<int64_t> bytes_read;    // by rank
  std::vector<int64_t> weight_bytes;  // by rank, in memory
  std::vector<int64_t> peak_bytes;    // by rank, of ordinary memory: the weights, and what reading them takes
};

/// Collective, right after `weights` were loaded: the peak is the memory counter's so far.
LoadCost cost_of(const Loaded& own, const model::DecoderWeights& weights);
/// Collective: puts on top what else was read, such as the optimizer's state; peak and weights stay.
void add_(LoadCost& cost, const Loaded& own, const comm::Group& group);

/// One line of rank 0's, "command: read 12.30, 12.29 MB in 0.52 s from directory"; none where nothing was
/// read.
void log_load(const std::string& command, const std::filesystem::path& directory, const LoadCost& cost,
              const comm::Group& group);

}  // namespace shardwise::checkpoint
