// Checkpoints that know nothing of the tp size: a Hugging Face directory, plus the optimizer's state in
// safetensors.
//
//   DIR/step-N/config.json, model.safetensors        standard names, in the model's dtype
//   DIR/step-N/optimizer.safetensors                 <name>.master (bf16 models), <name>.exp_avg,
//   <name>.exp_avg_sq,
//                                                    progress.step and others: fp32 (fp64) and int64
//   DIR/latest -> step-N
//
// A directory is written under a temporary name, every rank its own slices, synced, agreed upon, then
// renamed; `latest` flips by rename. A crash at any moment leaves the last good one.
#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shardwise/model/decoder.h"

namespace shardwise::checkpoint {

/// The optimizer's tensors of one parameter, each with the shape of the parameter's local slice.
struct ParameterState {
  parallel::ParameterPtr parameter;
  at::Tensor master;  // undefined when the model's own dtype is fp32 or fp64
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

struct TrainState {
  std::vector<ParameterState> parameters;
  int64_t step = 0;       // optimizer steps done
  int64_t sequences = 0;  // training windows consumed
  int64_t seed = 0;       // the bits of --seed; with seq_len it says which windows those are
  int64_t seq_len = 0;
};

/// `path` itself when it is a checkpoint directory, else the one its `latest` names.
/// Errors: c10::ValueError when neither holds a config.json.
std::filesystem::path resolve(const std::filesystem::path& path);

/// All that can be wrong with the files' headers, before any rank starts: missing, extra-shaped or mis-typed
/// tensors for this config; with `needs_state`, the optimizer's too, but for the `frozen` tensors. Errors:
/// c10::ValueError naming file and tensor.
void check(const std::filesystem::path& directory, bool needs_state,
           const std::set<std::string>& frozen = {});

/// What a load has cost this rank.
struct Loaded {
  int64_t bytes_read;  // headers and index included
  double seconds;
};

/// Reads this rank's slices and no other weight, converting fp32, bf16, fp16 and fp64 to the parameters'
/// dtype. Quantized weights are read packed, or made from ordinary ones: collective then, for ranks that hold
/// columns of the same row or group agree on its scale. Collective at its end. Cost: 1 MB beside the weights,
/// or a row where one is longer; 8 MB where they are packed, 32 MB where they are quantized. Errors:
/// c10::ValueError naming the tensor and the rule; for numbers that are not finite or too large to be
/// quantized, and for wrong groups, base::CollectiveError, on every rank.
Loaded load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights);

/// Reads the optimizer's state of `weights` into `state` (tensors allocated by the caller); its numbers are
/// set. Collective as load_weights is. Errors: c10::ValueError naming the tensor or number and the rule.
Loaded load_state(const std::filesystem::path& directory, TrainState& state,
                  const model::DecoderWeights& weights);

/// A hash of inode, size and time of each file that a run reads from `directory`, with `needs_state` the
/// optimizer's too: another one once a checkpoint has been replaced or written to. Errors: c10::ValueError.
uint64_t fingerprint(const std::filesystem::path& directory, bool needs_state);

/// Texts that lie beside the weights, by file name: a tokenizer's.
using Companions = std::map<std::string, std::string>;

/// Collective. Writes DIR/step-N and flips DIR/latest; keeps the `keep` newest step directories (0: all).
/// A failure on one rank is an error on all, and the previous checkpoint stands.
void save(const std::filesystem::path& dir, const model::DecoderWeights& weights, const TrainState& state,
          int64_t keep, const Companions& companions = {});

}  // namespace shardwise::checkpoint
