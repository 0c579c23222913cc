// The settings of a run that its checkpoints contain, and the options of a run that resumes from one.
//
// DIR/step-N/training.json has the settings below by the names of their flags: {"steps": 200, "lr": 0.001,
// ...}; seed and seq_len are counters of the optimizer file.
#pragma once
#include <filesystem>
#include <string>

#include "shardwise/train/options.h"

namespace shardwise::train {

/// Returns the contents of training.json for a run with `options`.
std::string settings_json(const TrainOptions& options);

/// The options of a run, and what it logs about them.
struct ResumedOptions {
  TrainOptions options;
  std::string changes = {};     // the settings that differ from the saved run's, in words; empty: none do
  bool lacks_settings = false;  // an older version saved the checkpoint, without training.json
};

/// Returns `given`, with the settings of the checkpoint for those that are not given. The loss may change
/// with a given setting, except for seed, seq_len and those of AdamW, which its state depends on.
/// Errors: c10::ValueError naming the flag and both values for these, and the file if it is damaged.
ResumedOptions resumed_options(const TrainOptions& given, const std::filesystem::path& checkpoint);

}  // namespace shardwise::train
