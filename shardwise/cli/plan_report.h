// What `shardwise plan` prints.
#pragma once
#include <string>

#include "shardwise/plan/published.h"
#include "shardwise/plan/search.h"

namespace shardwise::cli {

/// The plans of a task on a machine.
struct PlanReport {
  std::string model;  // as in --model
  plan::TrainingTask task;
  plan::Machine machine;
  plan::SearchResult found;
  int64_t usable_bytes;  // that a rank may fill

  /// Returns the part of the devices' peak rate that so many FLOP of all ranks take in a step of the plan.
  double utilization(double flop, const plan::TrainingPlan& plan) const;
  /// Returns the tokens of a step, over all ranks, per second.
  double tokens_per_second(const plan::TrainingPlan& plan) const;
};

/// Returns a table of the fastest plan of each combination of tp, pp and dp, at most `rows`, and why other
/// combinations are refused.
std::string to_text(const PlanReport& report, int64_t rows);
/// Returns a line that explains by the parts of their times why the fastest plan is faster than the fastest
/// with other tp, pp and dp; "" unless there are two.
std::string why(const PlanReport& report);
/// Returns a line with one JSON object.
std::string to_json(const PlanReport& report);

/// Returns a table of the figures with the error of each, or a line with one JSON object.
std::string to_text(const std::vector<plan::PublishedFigure>& figures);
std::string to_json(const std::vector<plan::PublishedFigure>& figures);

}  // namespace shardwise::cli
