// A training run with validated inputs. The launcher constructs a Job before any rank starts, and each rank
// constructs it again. All errors in options, text, model and checkpoints are reported here, before anything
// is written.
#pragma once
#include <filesystem>

#include "shardwise/config/config.h"
#include "shardwise/config/freeze.h"
#include "shardwise/text/windows.h"
#include "shardwise/train/resumed_options.h"
#include "shardwise/train/text.h"

namespace shardwise::train {

/// What a run starts from, known before its text is read.
struct Start {
  std::optional<std::filesystem::path> resumed, initial;  // as in Job
  ResumedOptions resumption;
  config::Config config;  // its dtype is the run's dtype

  const TrainOptions& options() const { return resumption.options; }
};

/// Reads the settings of the resumed checkpoint and the model's config, and validates the options. Errors:
/// c10::ValueError naming the flag or file and the violated rule.
Start start_of(const TrainOptions& given);

/// A validated training run: options, model config, tokens and starting checkpoint.
class Job {
 public:
  /// Validates the options and their files, creates the directory of --save, and removes the temporary files
  /// of dead processes from it. Throws c10::ValueError naming the flag or file and the violated rule.
  explicit Job(const TrainOptions& options);
  Job(const Job&) = delete;

  /// The given options. With --resume, the checkpoint's settings replace those that are not given.
  const TrainOptions& options() const { return start_.options(); }
  /// How the options differ from those of the resumed run, for the log.
  const ResumedOptions& resumption() const { return start_.resumption; }
  /// The model config; its dtype is the run's dtype.
  const config::Config& config() const { return start_.config; }
  const Text& text() const { return text_; }
  const text::Windows& windows() const { return windows_; }
  /// The step-N directory of --resume and the model directory of --init; at most one is set.
  const std::optional<std::filesystem::path>& resumed() const { return start_.resumed; }
  const std::optional<std::filesystem::path>& initial() const { return start_.initial; }
  /// The one of both that is set: the directory that the weights are loaded from.
  const std::optional<std::filesystem::path>& starting_checkpoint() const {
    return start_.resumed ? start_.resumed : start_.initial;
  }
  /// The auxiliary files that are written into every checkpoint, by name: the tokenizer's files, the
  /// generation_config.json of the checkpoint that the run starts from, and the run's training.json.
  const std::map<std::string, std::string>& auxiliary_files() const { return auxiliary_files_; }
  /// The parameters that are not trained.
  const config::Frozen& frozen() const { return frozen_; }
  /// The number of optimizer steps done before this run.
  int64_t first_step() const { return first_step_; }
  /// Checks that the directory of --save, which must be given, has no step after first_step(), also once this
  /// run has its lock: another run may have saved there since the constructor checked it.
  /// Errors: c10::ValueError; base::FileError if the directory cannot be read.
  void check_no_later_steps() const;
  /// A hash of the starting checkpoint and the text at construction. Ranks compare their hashes to detect
  /// that an input changed while they started.
  uint64_t fingerprint() const { return fingerprint_; }
  /// Recomputes the hash from the checkpoint's current state. The text is not scanned again: reading it
  /// detects changes.
  uint64_t fingerprint_now() const;

 private:
  Start start_;
  config::Frozen frozen_;
  int64_t first_step_;
  Text text_;
  text::Windows windows_;
  std::map<std::string, std::string> auxiliary_files_;
  uint64_t fingerprint_;
};

}  // namespace shardwise::train
