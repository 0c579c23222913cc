// Saves a checkpoint in four steps, each of which succeeds on all ranks or fails on all: rank 0 creates the
// directory and its files at full size, every rank writes its shards, every rank syncs them, rank 0 renames
// the directory.
#include "shardwise/checkpoint/pending_save.h"

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/random.h"
#include "shardwise/checkpoint/auxiliary_files.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/contents.h"
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

FilePlan planned_weights(const model::DecoderWeights& weights, const parallel::OwnedRows& owned) {
  Entries entries = weight_entries(weights, owned);
  io::FileLayout layout = plan_weights(entries);
  return {kWeightsFile, std::move(entries), std::move(layout)};
}

FilePlan planned_state(const TrainState& state, const config::Config& config,
                       const parallel::OwnedRows& owned) {
  Entries entries = state_entries(state.tensors, config, owned);
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

/// `rank`: tensor-parallel.
void write_entry(const Entry& entry, const io::SafetensorsWriter& file, int rank) {
  const auto& [name, stored, local, rows] = entry;
  auto shape = stored.shape;
  if (!stored.rule.is_replicated()) shape[stored.dim] = stored.rule.local_size(rank);
  shape[stored.is_transposed ? 1 : 0] = rows.size();
  TORCH_CHECK_VALUE(local.is_contiguous() && stored.oriented(local).sizes() == at::IntArrayRef(shape),
                    "save: ", name, " must be contiguous and have the parameter's local shape; got ",
                    local.sizes(), " [SW0368]");
  const io::TensorInfo& tensor = file.layout().find(name);
  for (const auto& [file_rows, columns, part] : parts_of(entry, stored.owned(rank))) {
    const at::Tensor dense = part.contiguous().cpu();
    io::write_block(file, io::rectangle_of(tensor, file_rows, columns), dense.const_data_ptr());
  }
}

void write_progress(const io::SafetensorsWriter& file, const TrainState& state) {
  for (const auto& [name, value] : kProgress) file.write_tensor(file.layout().find(name), &(state.*value));
}

/// Opens the files and writes the rows of a tensor-parallel rank's shards that it owns.
std::vector<io::SafetensorsWriter> write_files(const fs::path& directory, const std::vector<FilePlan>& plans,
                                               int rank) {
  std::vector<io::SafetensorsWriter> files;
  for (const FilePlan& plan : plans) {
    files.push_back(io::SafetensorsWriter::open(directory / plan.name, plan.layout));
    for (const Entry& entry : plan.entries) write_entry(entry, files.back(), rank);
  }
  return files;
}

void sync_files(const std::vector<io::SafetensorsWriter>& files) {
  for (const io::SafetensorsWriter& file : files) file.sync();
}

std::string op_of(const fs::path& target) {
  return "save " + target.string();
}

}  // namespace

PendingSave::PendingSave(const fs::path& dir, const model::DecoderWeights& weights, const TrainState& state,
                         int64_t keep, const AuxiliaryFiles& auxiliary_files,
                         const std::optional<SaveGroup>& saving)
    : group_(saving ? saving->group : weights.group()), dir_(dir), step_(state.step), keep_(keep) {
  const parallel::OwnedRows owned = saving ? saving->rows : parallel::OwnedRows();
  const bool is_rank_0 = group_.rank() == 0;
  const std::string op = op_of(target());
  const fs::path path = temporary_path(dir, step_, agreed_random(group_));
  std::vector<FilePlan> plans;
  std::vector<io::SafetensorsWriter> files;

  all_ranks_or_throw(group_, op, [&] {
    TORCH_CHECK_VALUE(keep >= 0, "save: keep must be 0 (all) or more; got ", keep, " [SW0369]");
    plans = {planned_weights(weights, owned), planned_state(state, weights.config(), owned)};
    if (!is_rank_0) return;
    base::make_directories(dir);
    remove_stale(dir);
    directory_ = std::make_unique<TemporaryDirectory>(path, wait_on_rank_0(group_, kMaxLockWait));
    create_files(path, weights, plans);
    for (const auto& [name, text] : auxiliary_files) write_auxiliary_file(path, name, text);
  });
  all_ranks_or_throw(group_, op, [&] {
    files = write_files(path, plans, weights.group().rank());
    if (is_rank_0) write_progress(files.back(), state);
  });
  synced_ = std::async(std::launch::async, [files = std::move(files)] { sync_files(files); });
}

fs::path PendingSave::target() const {
  return dir_ / step_name(step_);
}

bool PendingSave::is_synced() const {
  const bool local = synced_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  const auto all = comm::gather_values(static_cast<uint8_t>(local), group_);
  return std::find(all.begin(), all.end(), 0) == all.end();
}

void PendingSave::finish() {
  const std::string op = op_of(target());
  all_ranks_or_throw(group_, op, [&] { synced_.get(); });
  all_ranks_or_throw(group_, op, [&] {
    if (group_.rank() != 0) return;
    directory_->publish(target());
    point_latest(dir_, step_, wait_on_rank_0(group_, kMaxLockWait));
    prune(dir_, step_, keep_);
  });
}

void save(const fs::path& dir, const model::DecoderWeights& weights, const TrainState& state, int64_t keep,
          const AuxiliaryFiles& auxiliary_files, const std::optional<SaveGroup>& saving) {
  PendingSave(dir, weights, state, keep, auxiliary_files, saving).finish();
}

}  // namespace shardwise::checkpoint
