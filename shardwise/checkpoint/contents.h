// Which tensors the two files of a checkpoint hold: one list for writing, reading and checking them.
//
//   model.safetensors      the weights by their Hugging Face names; a tied head is not in it
//   optimizer.safetensors  <name>.master, <name>.exp_avg, <name>.exp_avg_sq; progress.*
#pragma once
#include <string>
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/io/header.h"
#include "shardwise/model/names.h"

namespace shardwise::checkpoint {

inline constexpr const char* kLatest = "latest";  // the link beside the step directories
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kStateFile = "optimizer.safetensors";
inline constexpr const char* kMaster = ".master";
inline constexpr const char* kExpAvg = ".exp_avg";
inline constexpr const char* kExpAvgSq = ".exp_avg_sq";
inline constexpr const char* kStep = "progress.step";
inline constexpr const char* kSequences = "progress.sequences";
inline constexpr const char* kSeed = "progress.seed";
inline constexpr const char* kSeqLen = "progress.seq_len";

/// The numbers of the state's file, each a scalar.
struct ProgressNumber {
  const char* name;
  int64_t TrainState::*value;
};
inline constexpr ProgressNumber kProgress[] = {{kStep, &TrainState::step},
                                               {kSequences, &TrainState::sequences},
                                               {kSeed, &TrainState::seed},
                                               {kSeqLen, &TrainState::seq_len}};

/// One tensor of a file and the memory that holds this rank's slice of its parameter.
struct Entry {
  std::string name;
  model::StoredTensor stored;
  at::Tensor local;  // of the whole (possibly fused) parameter
};
using Entries = std::vector<Entry>;

/// Errors: TORCH_INTERNAL_ASSERT when there are quantized weights among them.
Entries weight_entries(const model::DecoderWeights& weights);
/// Of one parameter; `what` is added to the names.
Entries entries_of(const parallel::Parameter& parameter, const model::Config& config, const std::string& what,
                   const at::Tensor& local);
/// Without the scalars of the progress.
Entries state_entries(const std::vector<ParameterState>& parameters, const model::Config& config);

/// The places of `entries` in a file, the same on every rank. Errors: c10::ValueError for a dtype that no
/// checkpoint holds.
io::Layout plan_weights(const Entries& entries);
io::Layout plan_state(const Entries& entries);

}  // namespace shardwise::checkpoint
