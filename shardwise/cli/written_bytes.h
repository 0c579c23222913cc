// How far the writing of a model's directory has come: a terminal's live line, and signals that end it.
#pragma once
#include <string>

#include "shardwise/checkpoint/copier.h"
#include "shardwise/cli/live_line.h"

namespace shardwise::cli {

class WrittenBytes {
 public:
  explicit WrittenBytes(std::string command);
  WrittenBytes(const WrittenBytes&) = delete;

  /// What checkpoint's writers tell; outlived by this. Throws EndedBySignal.
  checkpoint::OnProgress on_progress();

 private:
  std::string command_;
  LiveLine line_;
};

}  // namespace shardwise::cli
