#include "shardwise/plan/rate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace shardwise::plan {
namespace {

bool is_positive(const Rate::Point& point) {
  return std::isfinite(point.work) && std::isfinite(point.per_second) && point.work > 0 &&
         point.per_second > 0;
}

}  // namespace

Rate::Rate(std::vector<Point> points, std::string source)
    : points_(std::move(points)), source_(std::move(source)) {
  const bool is_ascending = std::ranges::is_sorted(points_, std::ranges::less_equal{}, &Point::work);
  TORCH_CHECK_VALUE(!points_.empty() && std::ranges::all_of(points_, is_positive) && is_ascending,
                    "plan: rates must be points of positive work and rate, by ascending work; got ",
                    points_.size(), " points that are not [SW0765]");
}

double Rate::seconds(double work) const {
  return std::max(work, points_.front().work) / at(work);
}

double Rate::at(double work) const {
  if (work <= points_.front().work) return points_.front().per_second;
  if (work >= points_.back().work) return points_.back().per_second;
  const auto above = std::ranges::upper_bound(points_, work, {}, &Point::work);
  const Point &low = above[-1], &high = *above;
  const double part = std::log(work / low.work) / std::log(high.work / low.work);
  return low.per_second + part * (high.per_second - low.per_second);
}

}  // namespace shardwise::plan
