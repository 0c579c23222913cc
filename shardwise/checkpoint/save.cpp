// Saves a checkpoint in three steps, each of which succeeds on all ranks or fails on all: rank 0 creates the
// directory and its files at full size, every rank writes its shards, rank 0 renames the directory.
#include <ATen/ops/full.h>

#include <optional>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/random.h"
#include "shardwise/checkpoint/auxiliary_files.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/directories.h"
#include "shardwise/checkpoint/dtype.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/io/slices.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The plan of one of the two files, the same on every rank.
struct FilePlan {
  const char* name;
  Entries entries;
  io::FileLayout layout;
};

FilePlan planned_weights(const model::DecoderWeights& weights) {
  Entries entries = weight_entries(weights);
  io::FileLayout layout = plan_weights(entries);
  return {kWeightsFile, std::move(entries), std::move(layout)};
}

FilePlan planned_state(const TrainState& state, const config::Config& config) {
  Entries entries = state_entries(state.tensors, config);
  io::FileLayout layout = plan_state(entries);
  return {kStateFile, std::move(entries), std::move(layout)};
}

/// Returns rank 0's random number, from which all ranks derive the path of the temporary directory.
uint64_t agreed_random(const comm::Group& group) {
  return comm::gather_values(base::random_bits(), group)[0];
}

void create_files(const fs::path& directory, const model::DecoderWeights& weights,
                  const std::vector<FilePlan>& files) {
  for (const FilePlan& file : files) io::SafetensorsWriter::create(directory / file.name, file.layout);
  config::Config config = weights.config();
  config.dtype = config_dtype(weights.used_parameters().front().parameter->value.scalar_type());
  base::write_text(directory / kConfigFile, config::to_json(config));
}

void write_entry(const Entry& entry, const io::SafetensorsWriter& file, int rank) {
  const auto& [name, stored, local] = entry;
  const at::Tensor oriented = stored.oriented(local).contiguous();
  auto shape = stored.shape;
  if (!stored.rule.is_replicated()) shape[stored.dim] = stored.rule.local_size(rank);
  TORCH_CHECK_VALUE(local.is_contiguous() && oriented.sizes() == at::IntArrayRef(shape), "save: ", name,
                    " must be contiguous and have the parameter's local shape; got ", local.sizes(),
                    " [SW0368]");
  for (const auto& piece : stored.owned(rank)) {
    io::write_piece(file, file.layout().find(name), stored.dim, piece, shape[stored.dim],
                    oriented.const_data_ptr());
  }
}

void write_shards(const fs::path& directory, const FilePlan& planned, int rank) {
  const auto file = io::SafetensorsWriter::open(directory / planned.name, planned.layout);
  for (const Entry& entry : planned.entries) write_entry(entry, file, rank);
  file.sync();
}

void write_progress(const fs::path& directory, const FilePlan& planned, const TrainState& state) {
  const auto file = io::SafetensorsWriter::open(directory / planned.name, planned.layout);
  for (const auto& [name, value] : kProgress) file.write_tensor(file.layout().find(name), &(state.*value));
  file.sync();
}

}  // namespace

void save(const fs::path& dir, const model::DecoderWeights& weights, const TrainState& state, int64_t keep,
          const AuxiliaryFiles& auxiliary_files) {
  const comm::Group& group = weights.group();
  const bool is_rank_0 = group.rank() == 0;
  const std::string op = "save " + (dir / step_name(state.step)).string();
  const fs::path path = temporary_path(dir, state.step, agreed_random(group));
  std::vector<FilePlan> files;
  std::optional<TemporaryDirectory> directory;  // on rank 0

  all_ranks_or_throw(group, op, [&] {
    TORCH_CHECK_VALUE(keep >= 0, "save: keep must be 0 (all) or more; got ", keep, " [SW0369]");
    files = {planned_weights(weights), planned_state(state, weights.config())};
    if (!is_rank_0) return;
    base::make_directories(dir);
    remove_stale(dir);
    directory.emplace(path, wait_on_rank_0(group, kMaxLockWait));
    create_files(path, weights, files);
    for (const auto& [name, text] : auxiliary_files) write_auxiliary_file(path, name, text);
  });
  all_ranks_or_throw(group, op, [&] {
    for (const FilePlan& file : files) write_shards(path, file, group.rank());
    if (is_rank_0) write_progress(path, files.back(), state);
  });
  all_ranks_or_throw(group, op, [&] {
    if (!is_rank_0) return;
    directory->publish(dir / step_name(state.step));
    point_latest(dir, state.step, wait_on_rank_0(group, kMaxLockWait));
    prune(dir, state.step, keep);
  });
}

}  // namespace shardwise::checkpoint
