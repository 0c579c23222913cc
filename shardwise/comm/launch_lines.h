// What a rank writes to standard error, passed on line by line with the rank's name before it.
#pragma once
#include <string>
#include <string_view>

#include "shardwise/base/fd.h"

namespace shardwise::comm {

/// Writes one line to standard error, over the live line that rank 0 may have left on the terminal.
void print_line(const std::string& text);

class RankLines {
 public:
  /// `source` is non-blocking; none (rank 0, which writes by itself) has no lines.
  RankLines(int rank, base::Fd source) : rank_(rank), source_(std::move(source)) {}

  /// For poll; -1 when there is nothing more to come.
  int descriptor() const { return source_.get(); }
  /// Passes on all whole lines written so far.
  void pass_on();
  /// The same, and a last line without its end. Nothing is passed on afterward.
  void finish();
  /// From now on passes on one line and drops the rest: after a failure every survivor has the same to say.
  void allow_one_more() { lines_left_ = 1; }

 private:
  void print(std::string_view line);

  int rank_;
  base::Fd source_;
  std::string pending_;  // a line whose end has not come yet
  int lines_left_ = -1;  // -1: any number
};

}  // namespace shardwise::comm
