// Which split for which model: the fastest plans of typical runs beside what is often advised for them.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/search.h"

namespace shardwise::plan {

/// A run, the fastest way to do it, and the fastest that follows the advice.
struct Decision {
  std::string model;                    // a preset
  std::string machine;                  // a built-in one
  TrainingTask task;                    // what is trained
  std::optional<TrainingPlan> fastest;  // nullopt: nothing fits
  std::string source;                   // of the advice
  Pins advice;                          // the degrees that it has
  std::optional<TrainingPlan> advised;  // nullopt: nothing fits with them
};

/// Returns the decisions; searches for the plans.
std::vector<Decision> decision_matrix();

}  // namespace shardwise::plan
