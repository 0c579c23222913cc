// Saving in three acts, each agreed upon by all ranks: rank 0 makes the directory and its files at full size,
// every rank writes its own slices, rank 0 gives the directory its name.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <optional>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/agreement.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/io/slices.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

/// One of the two files: the same plan on every rank.
struct PlannedFile {
  const char* name;
  Entries entries;
  io::Layout layout;
};

PlannedFile planned_weights(const model::DecoderWeights& weights) {
  Entries entries = weight_entries(weights);
  io::Layout layout = plan_weights(entries);
  return {kWeightsFile, std::move(entries), std::move(layout)};
}

PlannedFile planned_state(const TrainState& state, const model::Config& config) {
  Entries entries = state_entries(state.parameters, config);
  io::Layout layout = plan_state(entries);
  return {kStateFile, std::move(entries), std::move(layout)};
}

/// The process id of rank 0, by which all ranks find the directory that it makes.
int64_t writer_id(const comm::Group& group) {
  at::Tensor id = at::full({1}, static_cast<int64_t>(getpid()), at::kLong);
  group.broadcast_(id, /*root=*/0);
  return id.item<int64_t>();
}

void create_files(const fs::path& directory, const model::DecoderWeights& weights,
                  const std::vector<PlannedFile>& files) {
  for (const PlannedFile& file : files) io::SafetensorsWriter::create(directory / file.name, file.layout);
  model::Config config = weights.config();
  config.dtype = config_dtype(weights.roles().front().parameter->value.scalar_type());
  base::write_text(directory / kConfigFile, model::to_json(config));
}

void write_entry(const Entry& entry, const io::SafetensorsWriter& file, int rank) {
  const auto& [name, stored, local] = entry;
  const at::Tensor oriented = stored.oriented(local).contiguous();
  auto shape = stored.shape;
  if (!stored.rule.is_replicated()) shape[stored.dim] = stored.rule.local_size(rank);
  TORCH_CHECK_VALUE(local.is_contiguous() && oriented.sizes() == at::IntArrayRef(shape), "save: ", name,
                    " must be contiguous and have the parameter's local shape; got ", local.sizes());
  for (auto piece : stored.owned(rank)) {
    if (base::mutated(base::Mutation::save_slices_swapped))
      piece.global_begin = stored.shape[stored.dim] - piece.global_begin - piece.size;
    io::write_piece(file, file.layout().find(name), stored.dim, piece, shape[stored.dim],
                    oriented.const_data_ptr());
  }
}

void write_own_slices(const fs::path& directory, const PlannedFile& planned, int rank) {
  const auto file = io::SafetensorsWriter::open(directory / planned.name, planned.layout);
  for (const Entry& entry : planned.entries) write_entry(entry, file, rank);
  file.sync();
}

void write_progress(const fs::path& directory, const PlannedFile& planned, const TrainState& state) {
  const auto file = io::SafetensorsWriter::open(directory / planned.name, planned.layout);
  for (const auto& [name, value] : kProgress) file.write_whole(file.layout().find(name), &(state.*value));
  file.sync();
}

/// The new checkpoint stands by now: an old one that cannot be removed is no reason to end the run.
void prune_or_warn(const fs::path& dir, int64_t step, int64_t keep) {
  try {
    prune(dir, step, keep);
  } catch (const std::exception& error) {
    base::log_warning(base::one_line(error));
  }
}

}  // namespace

void save(const fs::path& dir, const model::DecoderWeights& weights, const TrainState& state, int64_t keep,
          const Companions& companions) {
  const comm::Group& group = weights.group();
  const bool leads = group.rank() == 0;
  const std::string op = "save " + (dir / step_name(state.step)).string();
  const fs::path path = temporary_path(dir, state.step, writer_id(group));
  std::vector<PlannedFile> files;
  std::optional<TemporaryDirectory> directory;  // rank 0's

  all_ranks_or_throw(group, op, [&] {
    TORCH_CHECK_VALUE(keep >= 0, "save: keep must be 0 (all) or more; got ", keep);
    files = {planned_weights(weights), planned_state(state, weights.config())};
    if (!leads) return;
    base::make_directories(dir);
    remove_stale(dir);
    directory.emplace(path);
    create_files(path, weights, files);
    for (const auto& [name, text] : companions) base::write_text(path / name, text);
  });
  all_ranks_or_throw(group, op, [&] {
    for (const PlannedFile& file : files) write_own_slices(path, file, group.rank());
    if (leads) write_progress(path, files.back(), state);
  });
  all_ranks_or_throw(group, op, [&] {
    if (!leads) return;
    directory->publish(dir / step_name(state.step));
    point_latest(dir, state.step);
    prune_or_warn(dir, state.step, keep);
  });
}

}  // namespace shardwise::checkpoint
