// The options of a training run as plain data: one field for each flag of `shardwise train`.
//
// validate() checks the options alone; job.h checks the files, models and checkpoints that they name. With
// `resume`, a base::Setting that is not given is the checkpoint's (resumed_options.h), not its default.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/recompute.h"
#include "shardwise/base/setting.h"

namespace shardwise::train {

/// The options of a training run.
struct TrainOptions {
  // Text.
  std::vector<std::string> text;                            // files or directories
  std::optional<std::string> tokens;                        // or a file of token ids
  std::optional<std::string> tokenizer;                     // unset: the starting checkpoint's, else bytes
  base::Setting<double> val_fraction = base::Default{0.0};  // fraction of the tokens, taken from their end

  // Model: a preset, a config.json, or the config of the checkpoint of --resume or --init.
  std::optional<std::string> preset;        // nothing given: tiny
  std::optional<std::string> model_config;  // the path of a config.json
  std::optional<std::string> dtype;         // fp32, bf16 or fp64; unset: the resumed checkpoint's, else fp32
  base::Setting<double> dropout = base::Default{0.0};            // probability on the residual stream
  base::Setting<double> attention_dropout = base::Default{0.0};  // probability on attention probabilities
  base::Setting<double> label_smoothing = base::Default{0.0};    // ε of nn::LossOptions
  base::Setting<double> z_loss = base::Default{0.0};             // coefficient
  /// Globs over the Hugging Face names of tensors that are not trained; empty: the checkpoint's.
  std::vector<std::string> freeze;

  // Steps.
  base::Setting<int64_t> seq_len = base::Default{256};   // tokens per sequence
  base::Setting<int64_t> batch_size = base::Default{8};  // sequences per micro-batch
  base::Setting<int64_t> grad_accum =
      base::Default{1};  // micro-batches per optimizer step, over all replicas; unset: dp
  base::Setting<int64_t> steps = base::Default{200};  // the last step of the learning rate schedule
  std::optional<int64_t> stop_after;                  // ends the run at this step; unset: at `steps`
  base::Setting<uint64_t> seed = base::Default{0};    // of weights, windows and dropout

  // Optimizer.
  base::Setting<double> lr = base::Default{1e-3};  // peak learning rate
  std::optional<double> min_lr;                    // unset: the checkpoint's, else lr / 10
  std::optional<int64_t> warmup;  // steps; unset: the checkpoint's, else steps / 10, at most 100
  base::Setting<double> weight_decay = base::Default{0.1};  // of matrices (AdamWOptions)
  base::Setting<double> beta1 = base::Default{0.9};         // decay of the first moment
  base::Setting<double> beta2 = base::Default{0.95};        // decay of the second moment
  base::Setting<double> eps = base::Default{1e-8};          // added to the root of the second moment
  base::Setting<double> clip_grad = base::Default{1.0};     // maximum gradient norm; 0: no clipping

  // Ranks.
  int64_t tp = 1;                       // tensor-parallel ranks of each replica of the model
  int64_t pp = 1;                       // pipeline stages, each of some of the layers
  int64_t virtual_stages = 1;           // the parts of the model that each of them has
  std::vector<int64_t> pp_layers;       // the layers of each part; empty: as even as possible
  std::string pp_schedule = "1f1b";     // the order of their forwards and backwards: 1f1b or afab
  int64_t dp = 1;                       // replicas, which share the micro-batches of a step
  int64_t zero = 1;                     // what replicas split: the ZeRO stage, 0 to 3
  std::string shared_weights = "auto";  // one copy for the replicas of a host: auto or off
  bool sequence_parallel = true;        // TP+SP rather than TP
  bool split_batch = false;             // overlap one half of a micro-batch with the other (Domino)
  std::string overlap = "auto";         // of collectives with GEMMs: auto, on or off
  std::string recompute = "none";       // activation recomputation: none, selective or full
  bool verify = false;                  // compare over the ranks what must be equal

  // Results.
  int64_t eval_every = 0;              // steps; 0: only after the last step
  int64_t eval_batches = 8;            // maximum number of micro-batches per evaluation
  std::optional<std::string> save;     // directory of checkpoints; unset: none
  int64_t save_every = 0;              // steps; 0: only after the last step
  std::optional<int64_t> keep;         // number of newest checkpoints to keep; 0: all; unset: 3
  std::optional<std::string> resume;   // checkpoint to continue
  std::optional<std::string> init;     // model directory to start from
  std::optional<std::string> log;      // file of one JSON line per step
  std::optional<std::string> report;   // file of the run's summary in JSON
  std::optional<std::string> profile;  // file of the Chrome trace of steps

  /// The number of ranks; the largest int64_t if that overflows.
  int64_t ranks() const;
  /// The learning rate at the end of the schedule.
  double final_lr() const { return min_lr.value_or(lr / 10); }
  /// The length of the linear warm-up in steps.
  int64_t warmup_steps() const;
  /// The last step of this run.
  int64_t last_step() const { return stop_after.value_or(steps); }
};

/// Parses --recompute. Throws c10::ValueError if `mode` is not none, selective or full.
base::Recompute recompute_of(const std::string& mode);

/// Checks the ranges and combinations of the options. Throws c10::ValueError naming the first invalid flag.
void validate(const TrainOptions& options);

}  // namespace shardwise::train
