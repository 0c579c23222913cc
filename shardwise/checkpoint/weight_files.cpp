#include "shardwise/checkpoint/weight_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/panel_index.h"
#include "shardwise/config/family.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using model::StoredTensor;
using Piece = base::ShardRule::Piece;

namespace {

const char* first_difference(const ShardedTensor& a, const ShardedTensor& b) {
  if (a.shape != b.shape) return "shape";
  if (a.rule != b.rule) return "rule";
  return a.dim != b.dim ? "dim" : "held";
}

/// Checks that the index shards each tensor as the model does. Errors: c10::ValueError naming `path`.
void check_sharding(const ShardIndex& index, const std::map<std::string, StoredTensor>& known,
                    const std::string& path) {
  for (const auto& [name, sharded] : index.tensors) {
    const auto stored = known.find(name);
    const ShardedTensor expected = stored == known.end()
                                       ? unsharded_tensor(sharded.shape, sharded.dtype)
                                       : sharded_tensor(stored->second, sharded.dtype, index.tp());
    TORCH_CHECK_VALUE(sharded == expected, path, ": ", base::shown(name), " must be sharded as ", kConfigFile,
                      " requires; got a different ", first_difference(sharded, expected), " [SW0282]");
  }
}

/// Checks that a tensor of a rank's file has the shape and dtype in the index. Errors: c10::ValueError.
void check_local(const io::SafetensorsFile& file, const io::TensorInfo& tensor, const ShardedTensor& sharded,
                 int rank) {
  const std::vector<int64_t> shape = sharded.local_shape(rank);
  TORCH_CHECK_VALUE(tensor.shape == shape, file.path(), ": ", tensor.name,
                    fmt::format(" must have the shape [{}]; got [{}] [SW0234]", fmt::join(shape, ", "),
                                fmt::join(tensor.shape, ", ")));
  TORCH_CHECK_VALUE(tensor.dtype == sharded.dtype, file.path(), ": ", tensor.name, " must be ",
                    io::dtype_name(sharded.dtype), ", as listed in ", kShardIndex, "; got ",
                    io::dtype_name(tensor.dtype), " [SW0283]");
}

/// Appends the ranges of a tensor in one rank's file: `used` is all that the rank holds, or what it owns.
void append_parts(std::vector<TensorSource>& parts, const io::SafetensorsFile& file,
                  const io::TensorInfo& tensor, const std::vector<Piece>& held,
                  const std::vector<Piece>& used) {
  int64_t file_begin = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const int64_t skipped = used[i].global_begin - held[i].global_begin;
    if (used[i].size > 0) {
      parts.push_back({&file, &tensor, file_begin + skipped, used[i].global_begin, used[i].size});
    }
    file_begin += held[i].size;
  }
}

/// Appends `next`, merged with the last range if they are contiguous on both sides.
void append(std::vector<TensorSource>& sources, const TensorSource& next) {
  if (!sources.empty()) {
    TensorSource& last = sources.back();
    if (last.tensor == next.tensor && last.file_begin + last.size == next.file_begin &&
        last.begin + last.size == next.begin) {
      last.size += next.size;
      return;
    }
  }
  sources.push_back(next);
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& directory, const config::Config& config,
                         std::optional<Reader> reader)
    : directory_(directory) {
  TORCH_CHECK_VALUE(!has_panel_files(directory), directory.string(),
                    ": must have weights that can be read again; got ", kPanelIndex,
                    ": packed for generate and eval; give the directory from which it was made [SW0731]");
  if (!is_sharded(directory)) {
    unsharded_.emplace(directory);
    return;
  }
  index_ = read_shard_index(directory);
  index_bytes_ = base::File::open_to_read(directory / kShardIndex).size();
  if (reader && reader->tp != tp()) reader.reset();
  open_shards(config, reader);
}

/// Opens the files, checks the index against the config, then each file against the index. A few bytes of an
/// index can state any tp: ranks without a file are rejected before anything is computed for each rank.
void WeightFiles::open_shards(const config::Config& config, std::optional<Reader> reader) {
  const std::string path = directory_ / kShardIndex;
  TORCH_CHECK_VALUE(tp() <= config.num_attention_heads, path, ": tp must be at most the ",
                    config.num_attention_heads, " query heads; got ", tp(), " [SW0281]");
  for (int rank = 0; rank < tp(); ++rank) {
    if (!reader || reader->rank == rank) shards_.try_emplace(rank, directory_ / index_->files[rank]);
  }
  const auto known = known_tensors(*this, config, tp());
  check_sharding(*index_, known, path);
  for (const auto& [rank, file] : shards_) {
    check_shard(file, rank);
    for (const auto& [name, stored] : known) {
      if (!contains(name)) continue;  // check_weights reports it
      append_parts(parts_[name], file, file.find(name), stored.held(rank),
                   reader ? stored.held(rank) : stored.owned(rank));
    }
  }
}

/// Checks that the file of a rank has the tensors that the index lists for it.
void WeightFiles::check_shard(const io::SafetensorsFile& file, int rank) const {
  for (const auto& [name, sharded] : index_->tensors) {
    if (sharded.has_shard_on(rank)) check_local(file, file.find(name), sharded, rank);
  }
  for (const io::TensorInfo& tensor : file.tensors()) {
    const auto sharded = index_->tensors.find(tensor.name);
    TORCH_CHECK_VALUE(sharded != index_->tensors.end() && sharded->second.has_shard_on(rank), file.path(),
                      ": must contain only the tensors that ", kShardIndex, " lists for this rank; got ",
                      base::shown(tensor.name), " [SW0284]");
  }
}

std::vector<std::string> WeightFiles::names() const {
  if (unsharded_) return unsharded_->names();
  std::vector<std::string> names;
  for (const auto& [name, sharded] : index_->tensors) names.push_back(name);
  return names;
}

bool WeightFiles::contains(const std::string& name) const {
  return unsharded_ ? unsharded_->contains(name) : index_->tensors.contains(name);
}

WeightFiles::FullTensorInfo WeightFiles::find(const std::string& name) const {
  if (unsharded_) {
    const auto [file, tensor] = unsharded_->find(name);
    return {file->path(), tensor->dtype, tensor->shape};
  }
  const auto sharded = index_->tensors.find(name);
  TORCH_CHECK_VALUE(sharded != index_->tensors.end(), (directory_ / kShardIndex).string(),
                    ": must contain the tensor ", base::shown(name), "; got none of that name [SW0247]");
  return {directory_ / kShardIndex, sharded->second.dtype, sharded->second.shape};
}

std::vector<TensorSource> WeightFiles::parts(const std::string& name, int64_t dim) const {
  if (!unsharded_) return parts_.at(name);
  const auto [file, tensor] = unsharded_->find(name);
  return {full_tensor_source(*file, *tensor, dim)};
}

TensorSource WeightFiles::full_source(const std::string& name) const {
  if (unsharded_) {
    const auto [file, tensor] = unsharded_->find(name);
    return {file, tensor};
  }
  TORCH_INTERNAL_ASSERT(index_->tensors.at(name).is_unsharded(), name, " is sharded");
  const io::SafetensorsFile& file = shards_.at(0);
  return {&file, &file.find(name)};
}

int64_t WeightFiles::bytes_read() const {
  if (unsharded_) return unsharded_->bytes_read();
  int64_t bytes = index_bytes_;
  for (const auto& [rank, file] : shards_) bytes += file.bytes_read();
  return bytes;
}

TensorSource full_tensor_source(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim) {
  return {&file, &tensor, /*file_begin=*/0, /*begin=*/0, tensor.shape.at(dim)};
}

std::vector<TensorSource> sources_of(const std::vector<TensorSource>& parts,
                                     const std::vector<Piece>& pieces) {
  std::vector<TensorSource> sources;
  for (const Piece& piece : pieces) {
    for (const TensorSource& part : parts) {
      const int64_t begin = std::max(piece.global_begin, part.begin);
      const int64_t end = std::min(piece.global_begin + piece.size, part.begin + part.size);
      if (begin >= end) continue;
      append(sources, {part.file, part.tensor, part.file_begin + begin - part.begin,
                       piece.local_begin + begin - piece.global_begin, end - begin});
    }
  }
  return sources;
}

std::string name_in(const WeightFiles& files, const std::string& name, const config::Config& config) {
  const std::string& prefix = config::family_of(config.model_type).optional_prefix;
  if (prefix.empty() || !name.starts_with(prefix) || files.contains(name)) return name;
  const std::string shorter = name.substr(prefix.size());
  return files.contains(shorter) ? shorter : name;
}

std::map<std::string, StoredTensor> known_tensors(const WeightFiles& files, const config::Config& config,
                                                  int tp) {
  std::map<std::string, StoredTensor> known;
  for (StoredTensor& stored : model::stored_tensors(config, tp)) {
    known.emplace(name_in(files, stored.name, config), std::move(stored));
  }
  return known;
}

std::vector<std::string> weight_paths(const fs::path& directory) {
  if (!is_sharded(directory)) return io::files_of(directory);
  std::vector<std::string> paths{directory / kShardIndex};
  for (const std::string& file : read_shard_index(directory).files) paths.push_back(directory / file);
  return paths;
}

}  // namespace shardwise::checkpoint
