// Measures calls size by size, on all ranks at once, and turns their times into rates.
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/generation.h"
#include "shardwise/bench/machine.h"
#include "shardwise/bench/operation_rates.h"
#include "shardwise/bench/products.h"
#include "shardwise/bench/timing.h"

namespace shardwise::bench {

/// Returns the seconds of a call.
inline double seconds_of(const Measured& measured) {
  return measured.raw.median_us / 1e6;
}

/// Measures one size after another, for about `seconds` each.
class Measurements {
 public:
  /// `count`: of the measurements to come, for progress. All arguments must live as long.
  Measurements(double seconds, const comm::Group& group, size_t count, const OnMachineProgress& on_progress);

  /// Returns the seconds of each call. Collective.
  std::vector<double> of(const std::string& name, const std::vector<std::function<void()>>& calls);
  /// Returns the products of one weight. Collective.
  WeightMeasured of_products(const std::string& name, const ProductBench& bench);

  /// Returns the seconds of a token of the texts of each case. Collective.
  std::vector<double> of_tokens(const std::string& name, const model::DecoderWeights& weights,
                                const std::vector<GenerationCase>& cases);

  const comm::Group& group() const { return group_; }
  double seconds() const { return seconds_; }

 private:
  void show(const std::string& name);

  double seconds_;
  const comm::Group& group_;
  Synchronizer synchronizer_;
  size_t count_, done_ = 0;
  const OnMachineProgress& on_progress_;
};

/// The points of several rates that are measured together.
class RatePoints {
 public:
  explicit RatePoints(size_t rates) : points_(rates) {}
  void add(size_t rate, double work, double seconds) { points_[rate].push_back({work, work / seconds}); }
  plan::Rate take(size_t rate, const std::string& source) { return {std::move(points_[rate]), source}; }

 private:
  std::vector<std::vector<plan::Rate::Point>> points_;
};

/// Calls that are made when their size is measured, so that one size's tensors are freed before the next
/// one's exist.
using Makers = std::vector<std::function<SizedCalls()>>;

/// Calls f(sized, seconds of each call) for one size after another, until a call takes longer than the time
/// of a measurement: larger ones have the rate of the last.
template <class F>
void for_each_size(const Makers& sizes, Measurements& measurements, const F& f) {
  for (const auto& make : sizes) {
    const SizedCalls sized = make();
    const std::vector<double> seconds = measurements.of(sized.name, sized.calls);
    f(sized, seconds);
    if (std::ranges::max(seconds) > measurements.seconds()) return;
  }
}

/// Returns a rate for each of the calls, which are the same ones at every size.
RatePoints measure_sizes(const Makers& sizes, size_t calls, Measurements& measurements);

}  // namespace shardwise::bench
