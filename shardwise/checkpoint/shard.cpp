#include "shardwise/checkpoint/shard.h"

#include <algorithm>
#include <optional>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/atomic_directory.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using base::Range;

namespace {

/// One tensor of a file to be written, and the ranges that it is concatenated from.
struct PlannedTensor {
  io::TensorSpec spec;
  int64_t dim;
  std::vector<TensorSource> sources;
  bool is_unsharded;
};

struct RankFile {
  std::string name;
  std::vector<PlannedTensor> tensors;

  io::FileLayout layout() const {
    std::vector<io::TensorSpec> specs;
    for (const PlannedTensor& tensor : tensors) specs.push_back(tensor.spec);
    return io::plan_file(specs, {{"format", "pt"}});
  }
};

/// Returns the index of the files' tensors sharded over `tp` ranks. Errors: those of check_weights.
ShardIndex index_for(const WeightFiles& files, const config::Config& config, int tp) {
  check_weights(files, config);
  ShardIndex index;
  for (int rank = 0; rank < tp; ++rank) index.files.push_back(shard_file_name(rank, tp));
  for (const model::StoredTensor& stored : model::stored_tensors(config, tp)) {
    const std::string name = name_in(files, stored.name, config);
    index.tensors.emplace(name, sharded_tensor(stored, files.find(name).dtype, tp));
  }
  for (const std::string& name : files.names()) {  // the others are tensors that no rank reads
    const auto full = files.find(name);
    index.tensors.emplace(name, unsharded_tensor(full.shape, full.dtype));
  }
  return index;
}

PlannedTensor planned(const WeightFiles& files, const std::string& name, const ShardedTensor& sharded,
                      int rank) {
  PlannedTensor tensor{
      {name, sharded.dtype, sharded.local_shape(rank)}, sharded.dim, {}, sharded.is_unsharded()};
  if (sharded.is_unsharded()) {
    tensor.sources = {files.full_source(name)};
    return tensor;
  }
  std::vector<base::ShardRule::Piece> pieces;
  int64_t begin = 0;
  for (const Range& range : sharded.held[rank]) {
    pieces.push_back({range.begin, begin, range.size()});
    begin += range.size();
  }
  tensor.sources = sources_of(files.parts(name, sharded.dim), pieces);
  return tensor;
}

RankFile planned(const WeightFiles& files, const ShardIndex& index, int rank) {
  RankFile file{index.files[rank], {}};
  for (const auto& [name, sharded] : index.tensors) {
    if (sharded.has_shard_on(rank)) file.tensors.push_back(planned(files, name, sharded, rank));
  }
  return file;
}

struct ShardPlan {
  ShardIndex index;
  bool has_index;  // false for unsharded weights
  std::vector<RankFile> files;
};

/// Plans shards for `tp` ranks, or one file of full tensors without `tp`.
ShardPlan shard_plan_for(const WeightFiles& files, const config::Config& config, std::optional<int> tp) {
  ShardPlan plan{index_for(files, config, tp.value_or(1)), tp.has_value(), {}};
  if (!tp) plan.index.files = {kWeightsFile};
  for (int rank = 0; rank < plan.index.tp(); ++rank) plan.files.push_back(planned(files, plan.index, rank));
  return plan;
}

void write_file(const fs::path& directory, const RankFile& planned, TensorCopier& copier) {
  const auto file = io::SafetensorsWriter::create(directory / planned.name, planned.layout());
  for (const PlannedTensor& tensor : planned.tensors) {
    const io::TensorInfo& to = file.layout().find(tensor.spec.name);
    for (const TensorSource& from : tensor.sources) {
      if (tensor.is_unsharded) {
        copier.copy_full(from, file, to);
      } else {
        copier.copy(from, file, to, tensor.dim);
      }
    }
  }
  file.sync();
}

/// Writes all files to `directory`. Returns the bytes of their tensors.
int64_t write_all(const fs::path& in, const fs::path& directory, const ShardPlan& plan,
                  const OnProgress& on_progress) {
  TensorCopier copier(on_progress);
  for (const RankFile& file : plan.files) copier.add_to_total(file.layout());
  copy_auxiliary_files(in, directory);
  if (plan.has_index) base::write_text(directory / kShardIndex, to_json(plan.index));
  for (const RankFile& file : plan.files) write_file(directory, file, copier);
  on_progress(copier.all_bytes(), copier.all_bytes());  // the last chance to cancel
  return copier.all_bytes();
}

/// Writes `out` under a temporary name and renames it when it is complete.
WriteSummary write_directory(const std::string& op, const fs::path& in, const fs::path& out,
                             std::optional<int> tp, const OnProgress& on_progress) {
  const fs::path target = new_target_path(op, out);
  const config::Config config = config::load_config(in);
  const WeightFiles files(in, config);
  const ShardPlan plan = shard_plan_for(files, config, tp);
  AtomicDirectory directory(op, target);
  const int64_t bytes = write_all(in, directory.path(), plan, on_progress);
  directory.publish();
  return {plan.index.files, static_cast<int64_t>(plan.index.tensors.size()), bytes};
}

}  // namespace

WriteSummary shard(const fs::path& in, const fs::path& out, int tp, const OnProgress& on_progress) {
  return write_directory("shard", in, out, tp, on_progress);
}

WriteSummary merge(const fs::path& in, const fs::path& out, const OnProgress& on_progress) {
  return write_directory("merge", in, out, /*tp=*/std::nullopt, on_progress);
}

}  // namespace shardwise::checkpoint
