// The tensors in the two files of a checkpoint: one list for writing, reading and checking them.
//
//   model.safetensors      the weights by their Hugging Face names, without a tied lm_head
//   optimizer.safetensors  <name>.master, <name>.exp_avg, <name>.exp_avg_sq; progress.*
#pragma once
#include <string>
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/io/header.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

inline constexpr const char* kLatest = "latest";  // the link to the newest step directory
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kStateFile = "optimizer.safetensors";
inline constexpr const char* kTrainingFile = "training.json";  // the run's settings (train/)
inline constexpr const char* kStep = "progress.step";
inline constexpr const char* kSequences = "progress.sequences";
inline constexpr const char* kSeed = "progress.seed";
inline constexpr const char* kSeqLen = "progress.seq_len";

/// A counter in the optimizer file, stored as a scalar.
struct ProgressNumber {
  const char* name;
  int64_t TrainState::*value;
};
inline constexpr ProgressNumber kProgress[] = {{kStep, &TrainState::step},
                                               {kSequences, &TrainState::sequences},
                                               {kSeed, &TrainState::seed},
                                               {kSeqLen, &TrainState::seq_len}};

/// One tensor of a file and the memory of rows of this rank's shard of its parameter.
struct Entry {
  std::string name;
  model::StoredTensor stored;
  at::Tensor local;  // these rows of this rank's shard of the full (possibly fused) parameter
  base::Range rows;  // of the shard
};
using Entries = std::vector<Entry>;

/// Returns the entries of the `owned` rows of all weights; none of those of other pipeline stages. Errors:
/// TORCH_INTERNAL_ASSERT if one is quantized.
Entries weight_entries(const model::DecoderWeights& weights, const parallel::OwnedRows& owned);
/// Returns the entries of `rows` of one parameter, with `suffix` appended to the names.
Entries entries_of(const parallel::Parameter& parameter, const config::Config& config,
                   const std::string& suffix, const at::Tensor& local, const base::Range& rows);
/// Returns the entries of the optimizer state's `owned` rows, without the progress counters.
Entries state_entries(const std::vector<StateTensor>& tensors, const config::Config& config,
                      const parallel::OwnedRows& owned = {});

/// A rectangle of a tensor in a file: rows, which are indices of its first dim, by columns, which are indices
/// of its second one, if it has one.
struct StoredPart {
  base::Range rows, columns;
  at::Tensor local;  // the same rectangle in this rank's memory
};
/// Returns the rectangles of `entry` that are in one of the `pieces` (StoredTensor::held or owned).
std::vector<StoredPart> parts_of(const Entry& entry, const std::vector<base::ShardRule::Piece>& pieces);

/// Plans the offsets of the weights' `entries` in a file; the plan is the same on every rank.
/// Errors: c10::ValueError for a dtype that checkpoints do not support.
io::FileLayout plan_weights(const Entries& entries);
/// Plans the offsets of the optimizer state's `entries` and of the progress counters; errors as plan_weights.
io::FileLayout plan_state(const Entries& entries);

}  // namespace shardwise::checkpoint
