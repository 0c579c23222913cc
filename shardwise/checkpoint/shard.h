// From one directory of weights to another that is cut for another tp size, or whole again.
//
// Bytes are copied as they are, a few megabytes at a time. The directory appears whole, in one step, or not
// at all.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/copier.h"

namespace shardwise::checkpoint {

struct Written {
  std::vector<std::string> files;  // with weights, by name
  int64_t tensors;                 // of the whole model
  int64_t bytes;                   // of all slices
};

/// Writes `out`: the weights of `in` (whole, or cut for any size) as one file for each of `tp` ranks and an
/// index, beside its config.json, tokenizer and generation files. Of an element with several holders each
/// holder's file has a copy.
/// Cost: 8 MB of memory. Errors: c10::ValueError when `in` does not hold the weights of its config, `out`
/// exists or its directory does not; base::FileError when the disk refuses. Nothing is left behind.
Written shard(const std::filesystem::path& in, const std::filesystem::path& out, int tp,
              const OnProgress& on_progress);

/// The same with the whole tensors in one model.safetensors: each element from the file of its lowest holder.
Written merge(const std::filesystem::path& in, const std::filesystem::path& out,
              const OnProgress& on_progress);

}  // namespace shardwise::checkpoint
