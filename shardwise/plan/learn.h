// Correction of a measured machine by the steps of runs on it.
//
// What a plan leaves out, such as waiting for a slow rank or a processor that clocks down, makes all steps
// longer by about the same part. The correction has one factor for the time of operations and one for that
// of collectives, so that it cannot fit single runs.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// A step of a run, in seconds.
struct ObservedStep {
  double compute;        // planned: operations and the optimizer's sweeps
  double communication;  // planned: collectives
  double measured;       // of both

  /// Returns the planned seconds of both.
  double planned() const { return compute + communication; }
};

/// What measured times are of planned ones.
struct Correction {
  double compute = 1;        // factor of the time of operations and the optimizer's sweeps
  double communication = 1;  // factor of the time of collectives

  /// Returns the seconds of a step, corrected.
  double seconds(const ObservedStep& step) const {
    return compute * step.compute + communication * step.communication;
  }
};

/// Returns the factors with the least squares of relative errors. Both are the same if the runs do not tell
/// them apart: if all have the same part of communication, or a factor would not be from 0.1 to 10. Times
/// must be positive, but communication may be zero; there must be a step.
Correction learn(const std::vector<ObservedStep>& steps);

/// Returns the mean of |corrected / measured − 1|.
double mean_error(const std::vector<ObservedStep>& steps, const Correction& correction);

/// Returns `machine` with the times of training steps multiplied by the factors; `source` is that of all its
/// figures. Rates that were measured for inference stay.
Machine corrected(Machine machine, const Correction& correction, const std::string& source);

}  // namespace shardwise::plan
