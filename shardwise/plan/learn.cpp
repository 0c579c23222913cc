#include "shardwise/plan/learn.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace shardwise::plan {
namespace {

/// Sums over steps of products of x = compute / measured and y = communication / measured.
struct Sums {
  double x = 0, y = 0, xx = 0, xy = 0, yy = 0;
};

Sums sums_of(const std::vector<ObservedStep>& steps) {
  Sums sums;
  for (const ObservedStep& step : steps) {
    const double x = step.compute / step.measured, y = step.communication / step.measured;
    sums.x += x;
    sums.y += y;
    sums.xx += x * x;
    sums.xy += x * y;
    sums.yy += y * y;
  }
  return sums;
}

/// Minimizes Σ(1 − a·x − b·y)²; nullopt if x and y are nearly proportional, or a factor is not plausible.
std::optional<Correction> two_factors(const Sums& s) {
  constexpr double kLeastAngle = 1e-4, kMostFactor = 10;  // of sin² between the vectors of x and y
  const double determinant = s.xx * s.yy - s.xy * s.xy;
  if (determinant <= kLeastAngle * s.xx * s.yy) return std::nullopt;
  const Correction found{(s.x * s.yy - s.y * s.xy) / determinant, (s.y * s.xx - s.x * s.xy) / determinant};
  for (const double factor : {found.compute, found.communication})
    if (!(factor >= 1 / kMostFactor && factor <= kMostFactor)) return std::nullopt;
  return found;
}

Rate faster(const Rate& rate, double factor, const std::string& source) {
  std::vector<Rate::Point> points = rate.points();
  for (Rate::Point& point : points) point.per_second *= factor;
  return {points, source};
}

OperationRates faster(const OperationRates& rates, double factor, const std::string& source) {
  return {.flop_per_second = rates.flop_per_second,
          .product = faster(rates.product, factor, source),
          .input_gradient = faster(rates.input_gradient, factor, source),
          .weight_gradient = faster(rates.weight_gradient, factor, source),
          .attention = faster(rates.attention, factor, source),
          .attention_backward = faster(rates.attention_backward, factor, source),
          .elementwise = faster(rates.elementwise, factor, source)};
}

void slow_(Link& link, double factor) {
  link.bytes_per_second.value /= factor;
  link.seconds_per_call.value *= factor;
  link.seconds_per_hop.value *= factor;
}

}  // namespace

Correction learn(const std::vector<ObservedStep>& steps) {
  TORCH_INTERNAL_ASSERT(!steps.empty());
  const Sums s = sums_of(steps);
  if (const auto found = two_factors(s)) return *found;
  const double both = (s.x + s.y) / (s.xx + 2 * s.xy + s.yy);
  return {both, both};
}

double mean_error(const std::vector<ObservedStep>& steps, const Correction& correction) {
  double sum = 0;
  for (const ObservedStep& step : steps) sum += std::abs(correction.seconds(step) / step.measured - 1);
  return sum / static_cast<double>(steps.size());
}

Machine corrected(Machine machine, const Correction& correction, const std::string& source) {
  const double speed = 1 / correction.compute, link_speed = 1 / correction.communication;
  machine.memory_bytes.source = source;  // machine_text writes it as that of all figures
  machine.memory_bytes_per_second.value *= speed;
  machine.update_bytes_per_second.value *= speed;
  machine.seconds_per_operation.value *= correction.compute;
  machine.rates_16_bit = faster(machine.rates_16_bit, speed, source);
  machine.rates_32_bit = faster(machine.rates_32_bit, speed, source);
  slow_(machine.within_node, correction.communication);
  if (auto& measured = machine.collectives)
    measured = {measured->ranks, faster(measured->all_reduce, link_speed, source),
                faster(measured->all_gather, link_speed, source),
                faster(measured->reduce_scatter, link_speed, source)};
  return machine;
}

}  // namespace shardwise::plan
