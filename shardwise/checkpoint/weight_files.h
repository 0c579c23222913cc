// The weights of a model directory in either format: unsharded, as on Hugging Face, or sharded for one tp
// size. Maps ranges of a full tensor to ranges in the files.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/shard_index.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

/// A range along a dim of a tensor in a file, and its begin in another tensor: the full one or a rank's
/// shard.
struct TensorSource {
  const io::SafetensorsFile* file;
  const io::TensorInfo* tensor;
  int64_t file_begin = 0, begin = 0, size = 0;
};

/// The weight files of a directory.
class WeightFiles {
 public:
  /// The rank, of `tp` ranks, that reads the weights.
  struct Reader {
    int rank, tp;
  };

  /// Opens all files of the directory, or only the file of `reader` if the directory is sharded for its tp
  /// size. Errors: c10::ValueError if a file is missing, damaged or inconsistent with the index, or if the
  /// index does not shard the weights as `config` requires.
  WeightFiles(const std::filesystem::path& directory, const config::Config& config,
              std::optional<Reader> reader = std::nullopt);
  WeightFiles(const WeightFiles&) = delete;

  /// Returns the tp size that the directory is sharded for, 0 if it is unsharded.
  int tp() const { return index_ ? index_->tp() : 0; }
  /// Returns the names of all tensors, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;

  /// The dtype and shape of a full tensor, and the file that they come from.
  struct FullTensorInfo {
    std::string path;
    io::Dtype dtype;
    std::vector<int64_t> shape;
  };
  /// Returns a full tensor's dtype and shape. Errors: c10::ValueError naming directory and tensor if it does
  /// not exist.
  FullTensorInfo find(const std::string& name) const;

  /// Returns the ranges in the files that make up a tensor along `dim`, with `begin` in the full tensor: all
  /// of it, or the shard of a rank that reads only its own file. Errors: those of find.
  std::vector<TensorSource> parts(const std::string& name, int64_t dim) const;
  /// Returns a tensor that is unsharded in one file, without a range. Errors: TORCH_INTERNAL_ASSERT if it is
  /// sharded.
  TensorSource full_source(const std::string& name) const;

  /// Returns the bytes read so far, including headers and index.
  int64_t bytes_read() const;

 private:
  void open_shards(const config::Config& config, std::optional<Reader> reader);
  void check_shard(const io::SafetensorsFile& file, int rank) const;

  std::filesystem::path directory_;
  std::optional<io::SafetensorsDirectory> unsharded_;
  std::optional<ShardIndex> index_;
  std::map<int, io::SafetensorsFile> shards_;  // by rank; a map, because TensorSource points to its elements
  std::map<std::string, std::vector<TensorSource>> parts_;  // by tensor: its ranges in the shards
  int64_t index_bytes_ = 0;
};

/// Returns all of a tensor in a file.
TensorSource full_tensor_source(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim);

/// Maps the ranges `pieces` of a full tensor to its `parts` in the files; `begin` counts like the pieces'
/// local_begin. Merges ranges that are contiguous on both sides.
std::vector<TensorSource> sources_of(const std::vector<TensorSource>& parts,
                                     const std::vector<base::ShardRule::Piece>& pieces);

/// Returns the name in `files` of a StoredTensor's `name`: the same, or without the prefix that some
/// published files of the config's family omit.
std::string name_in(const WeightFiles& files, const std::string& name, const config::Config& config);

/// Returns the model's tensors, sharded for `tp` ranks, by their names in `files`.
std::map<std::string, model::StoredTensor> known_tensors(const WeightFiles& files,
                                                         const config::Config& config, int tp);

/// Returns the paths of the files that WeightFiles(directory) reads; opens only the index.
/// Errors: c10::ValueError.
std::vector<std::string> weight_paths(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
