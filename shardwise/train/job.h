// A training run whose every input has been checked: made before any rank starts, and again by each rank.
//
// All that can be wrong with options, text, model and checkpoints is found here, so that it costs one line
// and no half-written file.
#pragma once
#include <filesystem>

#include "shardwise/model/config.h"
#include "shardwise/text/windows.h"
#include "shardwise/train/freeze.h"
#include "shardwise/train/options.h"
#include "shardwise/train/text.h"

namespace shardwise::train {

class Job {
 public:
  /// Makes the directory to save to, and removes what dead processes left in it.
  /// Errors: c10::ValueError naming the flag or file and the rule it breaks.
  explicit Job(const Options& options);
  Job(const Job&) = delete;

  const Options& options() const { return options_; }
  /// Its dtype is the run's.
  const model::Config& config() const { return config_; }
  const Text& text() const { return text_; }
  const text::Windows& windows() const { return windows_; }
  /// The step-N directory to continue from, or the directory whose weights to begin with.
  const std::optional<std::filesystem::path>& resumed() const { return resumed_; }
  const std::optional<std::filesystem::path>& initial() const { return initial_; }
  /// What checkpoints hold beside weights and state: the tokenizer's files and, of the directory that is
  /// begun from, how its makers would have texts continued.
  const std::map<std::string, std::string>& companions() const { return companions_; }
  /// What is not trained.
  const Frozen& frozen() const { return frozen_; }
  /// Optimizer steps done before this run.
  int64_t first_step() const { return first_step_; }
  /// A hash of what the run begins from, checkpoint and text, as it was when this was made; and with the
  /// checkpoint as it is now (the text is told by reading it). Ranks that find the same agree on it.
  uint64_t fingerprint() const { return fingerprint_; }
  uint64_t fingerprint_now() const;

 private:
  Options options_;
  std::optional<std::filesystem::path> resumed_, initial_;
  model::Config config_;
  Frozen frozen_;
  int64_t first_step_;
  Text text_;
  text::Windows windows_;
  std::map<std::string, std::string> companions_;
  uint64_t fingerprint_;
};

}  // namespace shardwise::train
