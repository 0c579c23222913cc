#include "shardwise/bench/measurements.h"

#include "shardwise/bench/synchronizer.h"

namespace shardwise::bench {

Measurements::Measurements(double seconds, const comm::Group& group, size_t count,
                           const OnMachineProgress& on_progress)
    : seconds_(seconds),
      group_(group),
      synchronizer_(synchronizer_of(group)),
      count_(count),
      on_progress_(on_progress) {}

void Measurements::show(const std::string& name) {
  if (group_.rank() == 0) on_progress_(done_, count_, name);
  ++done_;
}

std::vector<double> Measurements::of(const std::string& name,
                                     const std::vector<std::function<void()>>& calls) {
  show(name);
  std::vector<TimedCall> timed;
  for (const auto& call : calls) timed.push_back({"", call, {}});
  std::vector<double> seconds;
  for (const Measured& one : measure(timed, CacheState::warm, seconds_, synchronizer_))
    seconds.push_back(seconds_of(one));
  return seconds;
}

WeightMeasured Measurements::of_products(const std::string& name, const ProductBench& bench) {
  show(name);
  return measure_products(bench, group_, [](size_t, int64_t, int64_t) {}).front();
}

std::vector<double> Measurements::of_tokens(const std::string& name, const model::DecoderWeights& weights,
                                            const std::vector<GenerationCase>& cases) {
  show(name);
  const GenerationTimes times =
      measure_generation(weights, Phase::decode, cases, seconds_, [](int64_t, int64_t) {});
  std::vector<double> seconds;
  for (const GenerationMeasured& one : times.cases) seconds.push_back(seconds_of(one.step));
  return seconds;
}

RatePoints measure_sizes(const Makers& sizes, size_t calls, Measurements& measurements) {
  RatePoints points(calls);
  for_each_size(sizes, measurements, [&](const SizedCalls& sized, const std::vector<double>& seconds) {
    for (size_t i = 0; i < calls; ++i) points.add(i, sized.work[i], seconds[i]);
  });
  return points;
}

}  // namespace shardwise::bench
