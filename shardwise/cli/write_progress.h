// Progress of writing a model directory: shows it on a terminal and handles SIGINT and SIGTERM.
#pragma once
#include <string>

#include "shardwise/checkpoint/tensor_copier.h"
#include "shardwise/cli/progress_line.h"

namespace shardwise::cli {

class WriteProgress {
 public:
  explicit WriteProgress(std::string command);
  WriteProgress(const WriteProgress&) = delete;

  /// Returns a callback for the writers of checkpoint/, valid during this object's lifetime. It throws
  /// EndedBySignal after SIGINT or SIGTERM.
  checkpoint::OnProgress on_progress();

 private:
  std::string command_;
  ProgressLine line_;
};

}  // namespace shardwise::cli
