// The index of a directory whose weights are sharded for one tp size: the file of each rank, and the shard of
// every tensor in it.
//
//   shardwise.index.json      {"format": "shardwise.shards", "version": 1, "tp": 2,
//                              "files": ["rank-0-of-2.safetensors", "rank-1-of-2.safetensors"],
//                              "tensors": {"model.norm.weight": {"dtype": "F32", "shape": [12],
//                                          "rule": "whole on every rank", "dim": 0,
//                                          "held": [[[0, 12]], [[0, 12]]]}, …}}
//   rank-0-of-2.safetensors   the shards of rank 0 under the full tensors' names: the ranges in "held" along
//                             "dim", concatenated
//
// "held" follows from config.json and tp. It is stored so that a load can reject files that were sharded
// differently, and for programs that do not implement the rules.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/io/dtype.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

inline constexpr const char* kShardIndex = "shardwise.index.json";

/// One tensor of the full model and the ranges along `dim` that each rank's file contains.
struct ShardedTensor {
  io::Dtype dtype;
  std::vector<int64_t> shape;
  std::string rule;
  int64_t dim = 0;
  std::vector<std::vector<base::Range>> held;  // by rank
  bool operator==(const ShardedTensor&) const = default;

  bool is_unsharded() const { return held.empty(); }
  /// Returns whether the rank's file contains the tensor, possibly as an empty shard.
  bool has_shard_on(int rank) const { return !is_unsharded() || rank == 0; }
  /// Returns the shape of the rank's concatenated ranges.
  std::vector<int64_t> local_shape(int rank) const;
};

/// Returns the sharding that follows from the model's rule.
ShardedTensor sharded_tensor(const model::StoredTensor& stored, io::Dtype dtype, int tp);
/// Describes a tensor that no rank reads: rank 0's file contains it unsharded, for a merge.
ShardedTensor unsharded_tensor(const std::vector<int64_t>& shape, io::Dtype dtype);

struct ShardIndex {
  std::vector<std::string> files;  // by rank
  std::map<std::string, ShardedTensor> tensors;
  int tp() const { return static_cast<int>(files.size()); }
};

bool is_sharded(const std::filesystem::path& directory);
/// Returns a file name such as `rank-0-of-2.safetensors`.
std::string shard_file_name(int rank, int tp);

std::string to_json(const ShardIndex& index);
/// Reads the index. Errors: c10::ValueError naming file, field and rule. WeightFiles checks that the sharding
/// is the model's.
ShardIndex read_shard_index(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
