// The last step, prompt or token of a Chrome trace that --profile wrote (profile_report.h), rank by rank.
#pragma once
#include <string>
#include <vector>

namespace shardwise::cli {

/// One run of an op, in µs since the start of the earliest rank.
struct TimelineOp {
  std::string op, layer;
  double start_us = 0, duration_us = 0;
  double waiting_us = 0;  // the part of the duration spent waiting for other ranks
  double nested_us = 0;   // the part of the duration in ops directly within
  int depth = 0;          // 0: the step itself, which has all others within

  bool is_collective() const;
  /// Returns the time neither in an op within nor waiting.
  double own_us() const { return duration_us - nested_us - waiting_us; }
};

/// One rank's ops in the order in which they began; the first is the step, prompt or token.
using TimelineRank = std::vector<TimelineOp>;

/// What a rank's time is made of.
struct TimelineParts {
  double computing_us = 0, communicating_us = 0, waiting_us = 0;
  double host_us = 0;  // outside the ops within
};
TimelineParts parts_of(const TimelineRank& rank);

/// Reads the trace. Errors: c10::ValueError that names the file, unless it can be read and --profile wrote
/// it.
std::vector<TimelineRank> read_timeline(const std::string& path);

}  // namespace shardwise::cli
