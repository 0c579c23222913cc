#include "shardwise/checkpoint/shard.h"

#include <algorithm>
#include <optional>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/new_directory.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/model/sharding.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using base::Range;

namespace {

/// One tensor of a file to be written, and the runs that it is put together from.
struct PlannedTensor {
  io::TensorSpec spec;
  int64_t dim;
  std::vector<Source> sources;
  bool is_kept_whole;
};

struct PlannedFile {
  std::string name;
  std::vector<PlannedTensor> tensors;

  io::Layout layout() const {
    std::vector<io::TensorSpec> specs;
    for (const PlannedTensor& tensor : tensors) specs.push_back(tensor.spec);
    return io::plan_file(specs, {{"format", "pt"}});
  }
};

/// How `tp` ranks cut what the files hold. Errors: those of check_weights.
ShardIndex index_for(const WeightFiles& files, const model::Config& config, int tp) {
  check_weights(files, config);
  ShardIndex index;
  for (int rank = 0; rank < tp; ++rank) index.files.push_back(shard_file_name(rank, tp));
  for (const model::StoredTensor& stored : model::stored_tensors(config, tp)) {
    const std::string name = name_in(files, stored.name, config);
    index.tensors.emplace(name, cut_of(stored, files.find(name).dtype, tp));
  }
  for (const std::string& name : files.names()) {  // the rest is what no rank reads
    const auto whole = files.find(name);
    index.tensors.emplace(name, kept_whole(whole.shape, whole.dtype));
  }
  return index;
}

PlannedTensor planned(const WeightFiles& files, const std::string& name, const Cut& cut, int rank) {
  PlannedTensor tensor{{name, cut.dtype, cut.local_shape(rank)}, cut.dim, {}, cut.is_kept_whole()};
  if (cut.is_kept_whole()) {
    tensor.sources = {files.whole_source(name)};
    return tensor;
  }
  std::vector<base::ShardRule::Piece> pieces;
  int64_t begin = 0;
  for (const Range& run : cut.held[rank]) {
    pieces.push_back({run.begin, begin, run.size()});
    begin += run.size();
  }
  tensor.sources = sources_of(files.parts(name, cut.dim), pieces);
  return tensor;
}

PlannedFile planned(const WeightFiles& files, const ShardIndex& index, int rank) {
  PlannedFile file{index.files[rank], {}};
  for (const auto& [name, cut] : index.tensors) {
    if (cut.is_held_by(rank)) file.tensors.push_back(planned(files, name, cut, rank));
  }
  return file;
}

/// A directory to be written.
struct ShardPlan {
  ShardIndex index;
  bool has_index;  // whole weights need none
  std::vector<PlannedFile> files;
};

/// For `tp` ranks; without: whole, as one rank has them.
ShardPlan shard_plan_for(const WeightFiles& files, const model::Config& config, std::optional<int> tp) {
  ShardPlan plan{index_for(files, config, tp.value_or(1)), tp.has_value(), {}};
  if (!tp) plan.index.files = {kWeightsFile};
  for (int rank = 0; rank < plan.index.tp(); ++rank) plan.files.push_back(planned(files, plan.index, rank));
  return plan;
}

void write_file(const fs::path& directory, const PlannedFile& planned, Copier& copier) {
  const auto file = io::SafetensorsWriter::create(directory / planned.name, planned.layout());
  for (const PlannedTensor& tensor : planned.tensors) {
    const io::TensorInfo& to = file.layout().find(tensor.spec.name);
    for (const Source& from : tensor.sources) {
      if (tensor.is_kept_whole) {
        copier.copy_whole(from, file, to);
      } else {
        copier.copy(from, file, to, tensor.dim);
      }
    }
  }
  file.sync();
}

/// All files under `directory`. Returns the bytes of their slices.
int64_t write_all(const fs::path& in, const fs::path& directory, const ShardPlan& plan,
                  const OnProgress& on_progress) {
  Copier copier(on_progress);
  for (const PlannedFile& file : plan.files) copier.expect(file.layout());
  copy_companions(in, directory);
  if (plan.has_index) base::write_text(directory / kShardIndex, to_json(plan.index));
  for (const PlannedFile& file : plan.files) write_file(directory, file, copier);
  on_progress(copier.all_bytes(), copier.all_bytes());  // the last chance to give up
  return copier.all_bytes();
}

/// Under a temporary name, which ends with the work.
Written write_directory(const std::string& op, const fs::path& in, const fs::path& out, std::optional<int> tp,
                        const OnProgress& on_progress) {
  const fs::path target = free_target(op, out);
  const model::Config config = model::load_config(in);
  const WeightFiles files(in, config);
  const ShardPlan plan = shard_plan_for(files, config, tp);
  NewDirectory directory(op, target);
  const int64_t bytes = write_all(in, directory.path(), plan, on_progress);
  directory.publish();
  return {plan.index.files, static_cast<int64_t>(plan.index.tensors.size()), bytes};
}

}  // namespace

Written shard(const fs::path& in, const fs::path& out, int tp, const OnProgress& on_progress) {
  return write_directory("shard", in, out, tp, on_progress);
}

Written merge(const fs::path& in, const fs::path& out, const OnProgress& on_progress) {
  return write_directory("merge", in, out, /*tp=*/std::nullopt, on_progress);
}

}  // namespace shardwise::checkpoint
