// The live line of a training run: step, loss, tokens per second, time left.
//
// On a terminal it is redrawn in place a few times a second; elsewhere a plain line appears every few
// seconds.
#pragma once
#include <cstdint>
#include <string>

#include "shardwise/base/clock.h"
#include "shardwise/base/console.h"

namespace shardwise::base {

/// What the line says after a step.
struct ProgressState {
  int64_t step = 0;   // the last one done
  int64_t begin = 0;  // done before this run began
  int64_t end = 0;    // the last one to do
  double loss = 0;
  double tokens_per_s = 0;
  double elapsed_s = 0;  // since the run began
};

/// Seconds until `end` at the pace so far; negative while unknown.
double seconds_left(const ProgressState& state);
/// `step 120/400 [#####.....] loss 2.3456 12.3k tok/s 0:35 left`; `bar_columns` 0 leaves the bar out.
std::string progress_line(const ProgressState& state, int bar_columns);

class Progress {
 public:
  /// Steps `begin` + 1 to `end` will be done.
  Progress(int64_t begin, int64_t end, Console& console = Console::standard_error());
  /// Leaves the last state as an ordinary line, after an exception too.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Tells that `step` is done. Cost: a clock reading unless it is time to draw.
  void update(int64_t step, double loss, double tokens_per_s);

 private:
  void draw();

  Console& console_;
  ProgressState state_;
  Stopwatch since_begin_, since_drawn_;
  bool is_drawn_ = true;  // the state on screen is the latest
  bool has_drawn_ = false;
};

}  // namespace shardwise::base
