// Times an MLP or a block on several numbers of ranks: as training runs it, its computation alone, and its
// collectives alone.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/profiled_part.h"
#include "shardwise/bench/rank_team.h"
#include "shardwise/bench/timing.h"

namespace shardwise::bench {

/// How far an output is from that of one rank.
struct OutputDifference {
  double largest;                                            // max |y − y₁|
  double scale;                                              // max |y₁|
  double bound;                                              // what rounding allows
  bool is_within_bound() const { return largest <= bound; }  // false for NaN
};

/// A part on one number of ranks. Times are those of the slowest rank.
struct PartMeasured {
  int64_t ranks;
  bool is_oversubscribed;
  plan::PartCosts costs;   // as planned
  int64_t weight_bytes;    // on rank 0
  int64_t sent_bytes;      // by rank 0 in one call, as counted
  Measured together;       // with collectives
  Measured compute;        // rank 0's shapes on every rank, without a group
  Measured communication;  // the same collectives alone; no time on one rank
  std::optional<OutputDifference> difference = {};

  double ratio() const { return communication.raw.median_us / compute.raw.median_us; }
  /// Returns the sum of both alone, less the time together: negative if each slows the other.
  double overlap_us() const {
    return compute.raw.median_us + communication.raw.median_us - together.raw.median_us;
  }
};

/// How to measure.
struct PartBench {
  PartShape shape;
  bool compares;   // also the outputs, with that of the first team, which must be one rank
  double seconds;  // for each number of ranks
};

/// Called with what is measured, and how many of its repetitions are done.
using OnPartProgress = std::function<void(int64_t done, int64_t repetitions)>;

/// Measures all teams in the same repetitions, so that noise of the machine affects them alike. `world`: all
/// ranks of the job. The results are complete on rank 0, which calls `on_progress`. Collective.
std::vector<PartMeasured> measure_part(const PartBench& bench, const std::vector<RankTeam>& teams,
                                       const comm::Group& world, const OnPartProgress& on_progress);

}  // namespace shardwise::bench
