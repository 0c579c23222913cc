// Reshards a model directory: writes one that is sharded for a tp size, or merges the shards again.
//
// Copies bytes unchanged in blocks of a few megabytes. The new directory appears only when it is complete.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/tensor_copier.h"

namespace shardwise::checkpoint {

/// The result of writing a model directory.
struct WriteSummary {
  std::vector<std::string> files;  // names of the weight files
  int64_t tensors;                 // of the full model
  int64_t bytes;                   // of all shards
};

/// Writes `out`: the weights of `in` (unsharded, or sharded for any tp size) as one file for each of `tp`
/// ranks, an index, and copies of config.json and the tokenizer and generation files. A replicated element is
/// in the file of every replica.
/// Cost: 8 MB of memory.
/// Errors: c10::ValueError if `in` does not contain the weights of its config, and if `out` exists or its
/// parent does not; base::FileError if a write fails. Leaves no files behind on an error.
WriteSummary shard(const std::filesystem::path& in, const std::filesystem::path& out, int tp,
                   const OnProgress& on_progress);

/// Writes `out` with the full tensors of `in` in one model.safetensors: takes each element from the file of
/// its owner, the lowest rank that has it. Cost and errors as for shard.
WriteSummary merge(const std::filesystem::path& in, const std::filesystem::path& out,
                   const OnProgress& on_progress);

}  // namespace shardwise::checkpoint
