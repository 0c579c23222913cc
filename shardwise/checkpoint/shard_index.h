// The index of a directory whose weights are cut for one tp size: which file each rank reads, and what of
// every tensor is in it.
//
//   shardwise.index.json      {"format": "shardwise.shards", "version": 1, "tp": 2,
//                              "files": ["rank-0-of-2.safetensors", "rank-1-of-2.safetensors"],
//                              "tensors": {"model.norm.weight": {"dtype": "F32", "shape": [12],
//                                          "rule": "whole on every rank", "dim": 0,
//                                          "held": [[[0, 12]], [[0, 12]]]}, …}}
//   rank-0-of-2.safetensors   the first rank's slices under the whole tensors' names: the runs that "held"
//   gives
//                             it along "dim", put together
//
// "held" follows from config.json and tp; it is there so that a file that was cut otherwise is refused, and
// for programs that know no rules.
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

/// One tensor of the whole model and the runs of it along `dim` that each rank's file has.
struct Cut {
  io::Dtype dtype;
  std::vector<int64_t> shape;
  std::string rule;
  int64_t dim = 0;
  std::vector<std::vector<base::Range>> held;  // by rank
  bool operator==(const Cut&) const = default;

  bool is_kept_whole() const { return held.empty(); }
  /// Whether the rank's file has it, if only as an empty slice.
  bool is_held_by(int rank) const { return !is_kept_whole() || rank == 0; }
  /// Of the rank's runs put together.
  std::vector<int64_t> local_shape(int rank) const;
};

/// As the model's rule says.
Cut cut_of(const model::StoredTensor& stored, io::Dtype dtype, int tp);
/// Of a tensor that no rank reads and that is kept for a merge: whole, in the first rank's file.
Cut kept_whole(const std::vector<int64_t>& shape, io::Dtype dtype);

struct ShardIndex {
  std::vector<std::string> files;  // by rank
  std::map<std::string, Cut> tensors;
  int tp() const { return static_cast<int>(files.size()); }
};

bool is_sharded(const std::filesystem::path& directory);
/// `rank-0-of-2.safetensors`.
std::string shard_file_name(int rank, int tp);

std::string to_json(const ShardIndex& index);
/// Errors: c10::ValueError naming file, field and rule. Whether the rules are the model's is not asked here.
ShardIndex read_shard_index(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
