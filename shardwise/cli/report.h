// What a training run has come to, beside what the formulas of plan/ say it should cost.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/plan/peak.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

/// One rank's last step: measured, and by formula.
struct RankReport {
  struct Expected {
    int64_t comm_bytes;
    std::optional<plan::Peak> peak;  // not of batches in halves, which plan/ does not follow
  };
  train::Usage measured;
  Expected expected;
};

struct TrainReport {
  train::Summary summary;
  std::vector<RankReport> ranks;
};

/// One line: model, text, ranks and steps.
std::string describe(const train::Job& job);

/// `shares_memory`: the ranks do, or there is one; memory has a formula there alone.
TrainReport make_report(const train::Job& job, train::Summary summary, bool shares_memory);
/// Lines for people: how it went, and a table over the ranks.
std::string to_text(const TrainReport& report);
/// One line of JSON.
std::string to_json(const TrainReport& report);

}  // namespace shardwise::cli
