// The progress line of a training run: step, loss, tokens per second, time left.
//
// On a terminal it is redrawn a few times per second; otherwise a plain line is written every few seconds.
#pragma once
#include <cstdint>
#include <string>

#include "shardwise/base/clock.h"
#include "shardwise/base/console.h"

namespace shardwise::cli {

/// The values that the progress line shows after a step.
struct ProgressState {
  int64_t step = 0;   // the last completed step
  int64_t begin = 0;  // steps completed before this run
  int64_t end = 0;    // the last step to run
  double loss = 0;
  double tokens_per_s = 0;
  double elapsed_s = 0;  // since the start of the run
};

/// Returns the seconds until `end` at the average speed so far; negative if no step is completed.
double seconds_left(const ProgressState& state);
/// Formats `step 120/400 [#####.....] loss 2.3456 12.3k tok/s 0:35 left`; `bar_columns` 0 omits the bar.
std::string progress_line(const ProgressState& state, int bar_columns);

/// Draws the progress line of a training run on a console.
class TrainProgress {
 public:
  /// The run executes the steps `begin` + 1 to `end`.
  TrainProgress(int64_t begin, int64_t end, base::Console& console = base::Console::standard_error());
  /// Draws the last state and leaves it as an ordinary line, also after an exception.
  ~TrainProgress();
  TrainProgress(const TrainProgress&) = delete;
  TrainProgress& operator=(const TrainProgress&) = delete;

  /// Records that `step` is completed. Cost: one clock read unless it is time to redraw.
  void update(int64_t step, double loss, double tokens_per_s);

 private:
  void draw();

  base::Console& console_;
  ProgressState state_;
  base::Stopwatch since_begin_, since_drawn_;
  bool is_drawn_ = true;  // whether the line on the screen shows the latest state
  bool has_drawn_ = false;
};

}  // namespace shardwise::cli
