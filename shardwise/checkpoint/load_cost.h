// The cost of loading a checkpoint on every rank, as runs report it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"

namespace shardwise::checkpoint {

struct LoadCost {
  double seconds;                     // of the slowest rank
  std::vector<int64_t> bytes_read;    // by rank
  std::vector<int64_t> weight_bytes;  // by rank, in memory, mapped ones included
  std::vector<int64_t> mapped_bytes;  // by rank: of weights that are mapped from files
  std::vector<int64_t> peak_bytes;    // by rank: peak of private memory, weights and read buffers included
};

/// Returns the bytes of this rank's parameters in memory, loaded or not.
int64_t weight_bytes(const model::DecoderWeights& weights);
/// Returns the bytes of those that panel files map.
int64_t mapped_bytes(const model::DecoderWeights& weights);

/// Collective over `group`. Gathers the cost of loading each rank's `weights`. Call it right after the load:
/// the peak is the memory counter's peak so far.
LoadCost cost_of(const LoadStats& local, const model::DecoderWeights& weights, const comm::Group& group);
/// Collective. Adds the cost of another load, such as the optimizer state's, to bytes_read and seconds.
void add_(LoadCost& cost, const LoadStats& local, const comm::Group& group);

/// Logs one line on rank 0, "command: read 12.30, 12.29 MB in 0.52 s from directory", or "command: mapped …
/// from directory", unless nothing was read.
void log_load(const std::string& command, const std::filesystem::path& directory, const LoadCost& cost,
              const comm::Group& group);

}  // namespace shardwise::checkpoint
