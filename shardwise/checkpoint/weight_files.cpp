#include "shardwise/checkpoint/weight_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/model/family.h"
#include "shardwise/model/sharding.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using model::StoredTensor;
using Piece = base::ShardRule::Piece;

namespace {

const char* first_difference(const Cut& a, const Cut& b) {
  if (a.shape != b.shape) return "shape";
  if (a.rule != b.rule) return "rule";
  return a.dim != b.dim ? "dim" : "held";
}

/// Errors: c10::ValueError naming `path` unless the index cuts each tensor as the model does.
void check_cuts(const ShardIndex& index, const std::map<std::string, StoredTensor>& known,
                const std::string& path) {
  for (const auto& [name, cut] : index.tensors) {
    const auto stored = known.find(name);
    const Cut expected = stored == known.end() ? kept_whole(cut.shape, cut.dtype)
                                               : cut_of(stored->second, cut.dtype, index.tp());
    TORCH_CHECK_VALUE(cut == expected, path, ": ", base::shown(name), " must be cut as ", kConfigFile,
                      " says; got another ", first_difference(cut, expected));
  }
}

/// Errors: c10::ValueError unless a rank's file has of the tensor what the index says.
void check_local(const io::SafetensorsFile& file, const io::TensorInfo& tensor, const Cut& cut, int rank) {
  const std::vector<int64_t> shape = cut.local_shape(rank);
  TORCH_CHECK_VALUE(tensor.shape == shape, file.path(), ": ", tensor.name,
                    fmt::format(" must have the shape [{}]; got [{}]", fmt::join(shape, ", "),
                                fmt::join(tensor.shape, ", ")));
  TORCH_CHECK_VALUE(tensor.dtype == cut.dtype, file.path(), ": ", tensor.name, " must be ",
                    io::dtype_name(cut.dtype), ", as ", kShardIndex, " says; got ",
                    io::dtype_name(tensor.dtype));
}

/// What one rank's file has of a tensor: all that the rank holds, or what it owns.
void append_parts(std::vector<Source>& parts, const io::SafetensorsFile& file, const io::TensorInfo& tensor,
                  const std::vector<Piece>& held, const std::vector<Piece>& taken) {
  int64_t file_begin = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const int64_t skipped = taken[i].global_begin - held[i].global_begin;
    if (taken[i].size > 0) {
      parts.push_back({&file, &tensor, file_begin + skipped, taken[i].global_begin, taken[i].size});
    }
    file_begin += held[i].size;
  }
}

/// As one with the last where it goes on from there on both sides.
void append(std::vector<Source>& sources, const Source& next) {
  if (!sources.empty()) {
    Source& last = sources.back();
    if (last.tensor == next.tensor && last.file_begin + last.size == next.file_begin &&
        last.begin + last.size == next.begin) {
      last.size += next.size;
      return;
    }
  }
  sources.push_back(next);
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& directory, const model::Config& config, std::optional<Reader> reader)
    : directory_(directory) {
  if (!is_sharded(directory)) {
    whole_.emplace(directory);
    return;
  }
  index_ = read_shard_index(directory);
  index_bytes_ = base::File::open_to_read(directory / kShardIndex).size();
  if (reader && reader->tp != tp()) reader.reset();
  open_shards(config, reader);
}

/// The index against the config, then each file against the index.
void WeightFiles::open_shards(const model::Config& config, std::optional<Reader> reader) {
  const std::string path = directory_ / kShardIndex;
  TORCH_CHECK_VALUE(tp() <= config.num_attention_heads, path, ": tp must be at most the ",
                    config.num_attention_heads, " query heads; got ", tp());
  const auto known = known_tensors(*this, config, tp());
  check_cuts(*index_, known, path);
  for (int rank = 0; rank < tp(); ++rank) {
    if (reader && reader->rank != rank) continue;
    const io::SafetensorsFile& file = open_shard(rank);
    for (const auto& [name, stored] : known) {
      if (!contains(name)) continue;  // whoever reads it will say so
      append_parts(places_[name], file, file.find(name), stored.held(rank),
                   reader ? stored.held(rank) : stored.owned(rank));
    }
  }
}

const io::SafetensorsFile& WeightFiles::open_shard(int rank) {
  const io::SafetensorsFile& file = shards_.try_emplace(rank, directory_ / index_->files[rank]).first->second;
  for (const auto& [name, cut] : index_->tensors) {
    if (cut.is_held_by(rank)) check_local(file, file.find(name), cut, rank);
  }
  for (const io::TensorInfo& tensor : file.tensors()) {
    const auto cut = index_->tensors.find(tensor.name);
    TORCH_CHECK_VALUE(cut != index_->tensors.end() && cut->second.is_held_by(rank), file.path(),
                      ": must hold only what ", kShardIndex, " gives this rank; got ",
                      base::shown(tensor.name));
  }
  return file;
}

std::vector<std::string> WeightFiles::names() const {
  if (whole_) return whole_->names();
  std::vector<std::string> names;
  for (const auto& [name, cut] : index_->tensors) names.push_back(name);
  return names;
}

bool WeightFiles::contains(const std::string& name) const {
  return whole_ ? whole_->contains(name) : index_->tensors.contains(name);
}

WeightFiles::Whole WeightFiles::find(const std::string& name) const {
  if (whole_) {
    const auto [file, tensor] = whole_->find(name);
    return {file->path(), tensor->dtype, tensor->shape};
  }
  const auto cut = index_->tensors.find(name);
  TORCH_CHECK_VALUE(cut != index_->tensors.end(), (directory_ / kShardIndex).string(),
                    ": must hold the tensor ", base::shown(name), "; got none of that name");
  return {directory_ / kShardIndex, cut->second.dtype, cut->second.shape};
}

std::vector<Source> WeightFiles::parts(const std::string& name, int64_t dim) const {
  if (!whole_) return places_.at(name);
  const auto [file, tensor] = whole_->find(name);
  return {whole_part(*file, *tensor, dim)};
}

Source WeightFiles::whole_source(const std::string& name) const {
  if (whole_) {
    const auto [file, tensor] = whole_->find(name);
    return {file, tensor};
  }
  TORCH_INTERNAL_ASSERT(index_->tensors.at(name).is_kept_whole(), name, " is cut");
  const io::SafetensorsFile& file = shards_.at(0);
  return {&file, &file.find(name)};
}

int64_t WeightFiles::bytes_read() const {
  if (whole_) return whole_->bytes_read();
  int64_t bytes = index_bytes_;
  for (const auto& [rank, file] : shards_) bytes += file.bytes_read();
  return bytes;
}

Source whole_part(const io::SafetensorsFile& file, const io::TensorInfo& tensor, int64_t dim) {
  return {&file, &tensor, /*file_begin=*/0, /*begin=*/0, tensor.shape.at(dim)};
}

std::vector<Source> sources_of(const std::vector<Source>& parts, const std::vector<Piece>& pieces) {
  std::vector<Source> sources;
  for (const Piece& piece : pieces) {
    for (const Source& part : parts) {
      const int64_t begin = std::max(piece.global_begin, part.begin);
      const int64_t end = std::min(piece.global_begin + piece.size, part.begin + part.size);
      if (begin >= end) continue;
      append(sources, {part.file, part.tensor, part.file_begin + begin - part.begin,
                       piece.local_begin + begin - piece.global_begin, end - begin});
    }
  }
  return sources;
}

std::string name_in(const WeightFiles& files, const std::string& name, const model::Config& config) {
  const std::string& prefix = model::family_of(config.model_type).optional_prefix;
  if (prefix.empty() || !name.starts_with(prefix) || files.contains(name)) return name;
  const std::string shorter = name.substr(prefix.size());
  return files.contains(shorter) ? shorter : name;
}

std::map<std::string, StoredTensor> known_tensors(const WeightFiles& files, const model::Config& config,
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
