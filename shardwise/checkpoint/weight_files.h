// The weights of a directory, whichever way they lie there: whole, as Hugging Face keeps them, or cut for one
// tp size. Who reads asks for runs of a whole tensor and is told which bytes of which file they are.
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

/// A run along a dim of a tensor in a file and where it lies elsewhere: in the whole, or in a rank's slice.
struct Source {
  const io::SafetensorsFile* file;
  const io::TensorInfo* tensor;
  int64_t file_begin = 0, begin = 0, size = 0;
};

class WeightFiles {
 public:
  /// A reader of the weights: one of `tp` ranks.
  struct Reader {
    int rank, tp;
  };

  /// All files of the directory; for a `reader` whose tp size the directory is cut for, its own one alone,
  /// which holds all that it reads. Errors: c10::ValueError when a file is missing or damaged, or contradicts
  /// the index; when the index does not cut the weights as `config` says.
  WeightFiles(const std::filesystem::path& directory, const model::Config& config,
              std::optional<Reader> reader = std::nullopt);
  WeightFiles(const WeightFiles&) = delete;

  /// The size that the directory is cut for; 0: not cut.
  int tp() const { return index_ ? index_->tp() : 0; }
  /// All names, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;

  /// A whole tensor, as `path` describes it.
  struct Whole {
    std::string path;
    io::Dtype dtype;
    std::vector<int64_t> shape;
  };
  /// Errors: c10::ValueError naming directory and tensor when there is none.
  Whole find(const std::string& name) const;

  /// What makes up a tensor along `dim`, `begin` counting in the whole: all of it, for a reader of its own
  /// file what it holds. Errors: those of find.
  std::vector<Source> parts(const std::string& name, int64_t dim) const;
  /// A tensor that is in one file as a whole; the runs are left out. Errors: TORCH_INTERNAL_ASSERT when it is
  /// cut.
  Source whole_source(const std::string& name) const;

  /// So far, headers and index included.
  int64_t bytes_read() const;

 private:
  void open_shards(const model::Config& config, std::optional<Reader> reader);
  const io::SafetensorsFile& open_shard(int rank);

  std::filesystem::path directory_;
  std::optional<io::SafetensorsDirectory> whole_;
  std::optional<ShardIndex> index_;
  std::map<int, io::SafetensorsFile> shards_;          // by rank; nodes never move
  std::map<std::string, std::vector<Source>> places_;  // parts in the shards
  int64_t index_bytes_ = 0;
};

/// All of a tensor in a file.
Source whole_part(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim);

/// Where the runs `pieces` of a whole are among its `parts`: `begin` counts as the pieces' local_begin does.
/// What goes on on both sides is one run.
std::vector<Source> sources_of(const std::vector<Source>& parts,
                               const std::vector<base::ShardRule::Piece>& pieces);

/// What `files` call a weight: as stored_whole_tensors does, or without the prefix that some published files
/// of the config's family leave out.
std::string name_in(const WeightFiles& files, const std::string& name, const model::Config& config);

/// The model's tensors, cut for `tp` ranks, by the names that `files` give them.
std::map<std::string, model::StoredTensor> known_tensors(const WeightFiles& files,
                                                         const model::Config& config, int tp);

/// The files that WeightFiles(directory) reads, without looking into the tensors'. Errors: c10::ValueError.
std::vector<std::string> weight_paths(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
