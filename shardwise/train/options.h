// What a training run is asked to do, as plain data: one field for each flag of `shardwise train`.
//
// Only what can be judged from the options alone is checked here; what they name (files, models, checkpoints)
// is job.h's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/recompute.h"

namespace shardwise::train {

struct Options {
  // Text.
  std::vector<std::string> text;         // files or directories
  std::optional<std::string> tokens;     // or a file of ids
  std::optional<std::string> tokenizer;  // none: the checkpoint's that is begun from, else bytes
  double val_fraction = 0;               // of the tokens, from their tail

  // Model: a preset, a config.json, or that of the checkpoint that is resumed or begun from.
  std::optional<std::string> preset;  // none of all these: tiny
  std::optional<std::string> model_config;
  std::optional<std::string> dtype;  // fp32 or bf16; none: the resumed checkpoint's, else fp32
  double dropout = 0;
  double attention_dropout = 0;
  double label_smoothing = 0;
  double z_loss = 0;                // coefficient
  std::vector<std::string> freeze;  // globs over the names of tensors that are left as they are

  // Steps.
  int64_t seq_len = 256;
  int64_t batch_size = 8;  // sequences of one micro-batch
  int64_t grad_accum = 1;  // micro-batches of one optimizer step
  int64_t steps = 200;     // the schedule's horizon
  std::optional<int64_t> stop_after;
  uint64_t seed = 0;

  // Optimizer.
  double lr = 1e-3;
  std::optional<double> min_lr;   // none: lr / 10
  std::optional<int64_t> warmup;  // steps; none: a tenth of `steps`, at most 100
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip_grad = 1;  // 0: never

  // Ranks.
  int64_t tp = 1;
  bool sequence_parallel = true;
  bool domino = false;             // a micro-batch in halves that take turns
  std::string overlap = "auto";    // of the crossings with products; or on, or off
  std::string recompute = "none";  // or selective, or full
  bool verify = false;             // compare over the ranks what should be equal

  // Results.
  int64_t eval_every = 0;    // 0: only after the last step
  int64_t eval_batches = 8;  // at most so many micro-batches of validation windows
  std::optional<std::string> save;
  int64_t save_every = 0;       // 0: only after the last step
  std::optional<int64_t> keep;  // newest checkpoints; 0: all; none: 3
  std::optional<std::string> resume;
  std::optional<std::string> init;
  std::optional<std::string> log;
  std::optional<std::string> report;

  double final_lr() const { return min_lr.value_or(lr / 10); }
  int64_t warmup_steps() const;
  /// The last step that this run does.
  int64_t last_step() const { return stop_after.value_or(steps); }
};

/// Errors: c10::ValueError for another word than none, selective and full.
base::Recompute recompute_of(const std::string& mode);

/// Errors: c10::ValueError naming the first flag that is out of range, or at odds with another.
void validate(const Options& options);

}  // namespace shardwise::train
