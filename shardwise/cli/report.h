// The report of a training run: measured memory and communication next to those planned by plan/.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/plan/peak.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

/// One rank's last step: measured, and planned.
struct RankReport {
  struct Expected {
    int64_t comm_bytes;
    std::optional<plan::Peak> peak;  // none for split batches, which plan/ does not model
  };
  train::Usage measured;
  Expected expected;
};

struct TrainReport {
  train::Summary summary;
  std::vector<RankReport> ranks;
};

/// Returns one line with model, text, ranks and steps.
std::string describe(const train::Job& job);

/// Makes the report. Memory is planned only with `shares_memory`: the ranks share memory, or there is one
/// rank.
TrainReport make_report(const train::Job& job, train::Summary summary, bool shares_memory);
/// Returns the human-readable summary and a table over the ranks.
std::string to_text(const TrainReport& report);
/// Returns one line of JSON.
std::string to_json(const TrainReport& report);

}  // namespace shardwise::cli
