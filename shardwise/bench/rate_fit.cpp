#include "shardwise/bench/rate_fit.h"

#include <cmath>

namespace shardwise::bench {
namespace {

/// `points`: at least one.
RateFit geometric_means(const std::vector<RatioPoint>& points) {
  double log_flop = 0, log_bytes = 0;
  for (const RatioPoint& point : points) {
    const auto bytes = static_cast<double>(point.costs.collectives.total().bytes);
    log_flop += std::log(point.costs.flop / point.compute_seconds);
    log_bytes += std::log(bytes / point.communication_seconds);
  }
  const auto count = static_cast<double>(points.size());
  return {std::exp(log_flop / count), std::exp(log_bytes / count)};
}

}  // namespace

std::optional<RateFit> fit_rates(const std::vector<RatioPoint>& points) {
  if (points.empty()) return std::nullopt;
  RateFit fit = geometric_means(points);
  if (points.size() == 1) return fit;
  for (size_t i = 0; i < points.size(); ++i) {
    std::vector<RatioPoint> others = points;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    const double predicted = geometric_means(others).ratio(points[i].costs);
    fit.held_out_errors.push_back(std::abs(predicted / points[i].ratio() - 1));
  }
  return fit;
}

}  // namespace shardwise::bench
