// Forwards the standard error of a rank line by line, prefixed with the rank.
#pragma once
#include <string>
#include <string_view>

#include "shardwise/base/fd.h"

namespace shardwise::launch {

/// Writes one line to standard error and overwrites the progress line that rank 0 may have left on the
/// terminal.
void print_line(const std::string& text);

/// Reads the standard error of one rank and prints its lines.
class RankLines {
 public:
  /// `source` is non-blocking; it is empty for rank 0, which writes to standard error itself.
  RankLines(int rank, base::Fd source) : rank_(rank), source_(std::move(source)) {}

  /// Returns the descriptor for poll; -1 after the end of the stream.
  int descriptor() const { return source_.get(); }
  /// Prints all complete lines written so far.
  void forward();
  /// Prints the remaining lines, also an incomplete last one, and closes the stream.
  void forward_rest();
  /// Prints at most one more line and drops the rest: after a failure all surviving ranks report the same.
  void allow_one_more() { lines_left_ = 1; }

 private:
  void print(std::string_view line);

  int rank_;
  base::Fd source_;
  std::string pending_;  // a line without its end
  int lines_left_ = -1;  // -1: unlimited
};

}  // namespace shardwise::launch
