// Checkpoints that are independent of the tp size: a Hugging Face model directory plus the optimizer state
// in safetensors.
//
//   DIR/step-N/config.json, model.safetensors   Hugging Face names, in the model's dtype
//   DIR/step-N/optimizer.safetensors            <name>.master (bf16 models), <name>.exp_avg and
//                                               <name>.exp_avg_sq in fp32 (fp64); progress.step and others
//                                               in int64
//   DIR/latest -> step-N
//
// Every rank writes its shards into a directory with a temporary name. The directory is synced and renamed
// once all ranks have succeeded; then a rename replaces the link `latest`. A crash at any time leaves the
// last complete checkpoint intact.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardwise/model/decoder.h"
#include "shardwise/parallel/owned_rows.h"

namespace shardwise::checkpoint {

/// The suffix of fp32 weights, for models in bf16.
inline constexpr const char* kMaster = ".master";
/// The suffix of AdamW's first moment.
inline constexpr const char* kExpAvg = ".exp_avg";
/// The suffix of AdamW's second moment.
inline constexpr const char* kExpAvgSq = ".exp_avg_sq";

/// A tensor of the optimizer's state of one parameter. The files name it like the parameter, with `suffix`
/// appended.
struct StateTensor {
  parallel::ParameterPtr parameter;      // the parameter that the state belongs to
  std::string suffix;                    // kMaster, kExpAvg or kExpAvgSq
  at::Tensor local;                      // in the shape of these rows of the parameter's local shard
  std::optional<base::Range> rows = {};  // nullopt: all
};

/// The state that a run needs to resume, apart from the weights.
struct TrainState {
  /// All of a trained parameter, then all of the next, in the order of DecoderWeights::all_parameters.
  std::vector<StateTensor> tensors;
  int64_t step = 0;       // completed optimizer steps
  int64_t sequences = 0;  // consumed training windows
  int64_t seed = 0;       // the bits of --seed; seed and seq_len determine the windows
  int64_t seq_len = 0;    // tokens per training window
};

/// Returns `path` if it is a checkpoint directory, otherwise the directory that its link `latest` points to,
/// and without such a link the newest step-N in it: a save that is killed before it links the first `latest`
/// leaves that. Errors: c10::ValueError if none contains a config.json; base::FileError if `path` cannot be
/// listed.
std::filesystem::path resolve(const std::filesystem::path& path);
/// Logs one line, beginning with `command`, if `path` has no link `latest`, so that resolve() returned
/// `resolved`, its newest step-N.
void warn_of_missing_latest(const std::filesystem::path& path, const std::filesystem::path& resolved,
                            const std::string& command);

/// Checks the headers of the files before any rank starts: every tensor of the config must exist with its
/// shape and dtype. With `needs_state`, checks the optimizer state too, except for the `frozen` tensors.
/// Errors: c10::ValueError naming file and tensor.
void check(const std::filesystem::path& directory, bool needs_state,
           const std::set<std::string>& frozen = {});

/// The cost of a load on this rank.
struct LoadStats {
  int64_t bytes_read;        // including headers and index
  double seconds;            // wall-clock time
  int64_t mapped_bytes = 0;  // of weights that are mapped from files instead
};

/// Collective. Maps panel files (panel_files.h). Otherwise reads this rank's shards and no other weights, and
/// converts fp32, bf16, fp16 and fp64 to the parameters' dtype. Reads quantized weights packed, or quantizes
/// unquantized ones; ranks that hold columns of the same row or group then all_reduce its scale. Cost: 1 MB
/// of memory for each thread in addition to the weights, or one row if a row is longer; 8 MB for packed
/// weights, 32 MB for weights quantized on load. Errors: c10::ValueError naming the tensor and the rule;
/// base::CollectiveError on every rank for NaN or Inf, for values too large to quantize, and for invalid
/// group indices.
LoadStats load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights);

/// As above; calls `loaded` with each parameter, in the order of used_parameters, once it has been read, if
/// they are not in panel files.
LoadStats load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights,
                       const model::OnParameter& loaded);

/// Collective. Like load_weights, but leaves bf16 weights that inference packs in the files, if each row is
/// in one piece there (quant::MappedRows), and only checks their values: generation begins earlier, and packs
/// them between its forwards (docs/adr/0028). The files must not change until then.
LoadStats map_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights);

/// Collective. Reads the optimizer state of `weights` into the tensors of `state`, which the caller has
/// allocated, and sets its counters. Errors: c10::ValueError naming the tensor or counter and the rule;
/// base::CollectiveError on every rank for NaN or Inf.
LoadStats load_state(const std::filesystem::path& directory, TrainState& state,
                     const model::DecoderWeights& weights);

/// Returns a hash of the inode, size and modification time of every file that a run reads from `directory`,
/// with `needs_state` including the optimizer state. It changes when the checkpoint is replaced or modified.
/// Errors: c10::ValueError.
uint64_t fingerprint(const std::filesystem::path& directory, bool needs_state);

/// File name -> contents of the text files saved with the weights, such as the tokenizer's.
using AuxiliaryFiles = std::map<std::string, std::string>;

/// The ranks that save a checkpoint together, each of which writes its rows of its shards. Every rank writes
/// into the same directory.
struct SaveGroup {
  comm::Group group;         // of all that save
  parallel::OwnedRows rows;  // that this rank writes; it has the states of at least these
};

/// Collective. Writes DIR/step-N, points DIR/latest to it and keeps the `keep` newest step directories
/// (0: all); PendingSave (pending_save.h) does the same while training goes on. A failure on one rank is an
/// error on all, and the previous checkpoint stays in place. Without `saving`, the ranks of the weights'
/// group save all rows.
void save(const std::filesystem::path& dir, const model::DecoderWeights& weights, const TrainState& state,
          int64_t keep, const AuxiliaryFiles& auxiliary_files = {},
          const std::optional<SaveGroup>& saving = {});

}  // namespace shardwise::checkpoint
