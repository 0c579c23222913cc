// Two constants, the rate of products and the bandwidth of collectives, fitted to measured parts of models,
// and how well they predict a part that was left out.
#pragma once
#include <optional>
#include <vector>

#include "shardwise/plan/part.h"

namespace shardwise::bench {

/// A measured part, on two ranks or more.
struct RatioPoint {
  plan::PartCosts costs;
  double compute_seconds, communication_seconds;

  double ratio() const { return communication_seconds / compute_seconds; }
};

/// The fit, by geometric means of the points' rates.
struct RateFit {
  double flop_per_second, bytes_per_second;
  /// For each point |predicted / measured − 1| of the ratio, where the prediction is of the fit without this
  /// point; empty for a single point.
  std::vector<double> held_out_errors = {};

  double ratio(const plan::PartCosts& costs) const {
    return plan::communication_ratio(costs, flop_per_second, bytes_per_second);
  }
};

/// Returns the fit; nullopt if there is no point.
std::optional<RateFit> fit_rates(const std::vector<RatioPoint>& points);

}  // namespace shardwise::bench
