#include "shardwise/cli/bench_comm_tune.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>

#include "shardwise/cli/bench_synchronizer.h"
#include "shardwise/cli/table.h"
#include "shardwise/comm/shm/control.h"

namespace shardwise::cli {
namespace {

comm::Group connect_with(int64_t one_shot_bytes, const comm::Group& group, const std::string& job,
                         std::chrono::milliseconds timeout) {
  comm::shm::Options options(job, group.rank(), group.size());
  options.timeout = timeout;
  options.one_shot_bytes = one_shot_bytes;
  return comm::shm::connect(options);
}

/// Returns an all_reduce of a tensor of zeros or, if rewritten, ones: nothing overflows (bench_comm.cpp).
TimedCall timed_call(const char* name, const comm::Group& group, int64_t bytes, at::ScalarType dtype) {
  at::Tensor x = group.empty({bytes / int64_t(c10::elementSize(dtype))}, dtype);
  std::memset(x.mutable_data_ptr(), 0, x.nbytes());
  return {name, [&group, x]() mutable { group.all_reduce_(x); },
          [data = x.mutable_data_ptr(), bytes, is_bf16 = dtype == at::kBFloat16] {
            write_ones(data, bytes, is_bf16);
          }};
}

std::string quartiles(const Spread& us) {
  return fmt::format("{:.2f}-{:.2f}", us.lower_quartile_us, us.upper_quartile_us);
}

}  // namespace

BothAlgorithms connect_both(const comm::Group& group, const std::string& job,
                            std::chrono::milliseconds timeout) {
  return {connect_with(int64_t(comm::shm::kInlineBytes), group, job + "/one_shot", timeout),
          connect_with(0, group, job + "/two_shot", timeout)};
}

std::vector<CommPoint> measure_both(const CommBench& bench, const BothAlgorithms& groups,
                                    const std::function<void(const std::string&)>& show) {
  const Synchronizer synchronizer = synchronizer_of(groups.one_shot);
  std::vector<CommPoint> points;
  for (const int64_t bytes : bench.sizes) {
    for (const CacheState state : bench.states) {
      if (groups.one_shot.rank() == 0)
        show(fmt::format("bench comm: {} {}", size_text(bytes), name_of(state)));
      const std::vector<TimedCall> calls{timed_call("one_shot", groups.one_shot, bytes, bench.dtype),
                                         timed_call("two_shot", groups.two_shot, bytes, bench.dtype)};
      points.push_back({bytes, state, measure(calls, state, bench.seconds, synchronizer)});
    }
  }
  return points;
}

// The cost of a limit is the sum of the logarithms of its calls' times. Only differences between limits
// matter, and those are a running sum over the sizes.
int64_t best_one_shot_bytes(const std::vector<CommPoint>& points) {
  std::map<int64_t, double> gains;  // by size: log(two_shot / one_shot)
  for (const CommPoint& point : points) {
    gains[point.bytes] += std::log(point.measured[1].raw.median_us / point.measured[0].raw.median_us);
  }
  double gain = 0, best = 0;
  int64_t limit = 0;
  for (const auto& [bytes, size_gain] : gains) {
    gain += size_gain;
    if (gain <= best) continue;
    best = gain;
    limit = bytes;
  }
  return limit;
}

std::string tuning_text(const std::vector<CommPoint>& points, CacheState state) {
  std::vector<Row> rows{
      {"size", "one-shot us", "quartiles", "two-shot us", "quartiles", "one-shot / two-shot"}};
  for (const CommPoint& point : points) {
    if (point.state != state) continue;
    const Spread &one = point.measured[0].net, &two = point.measured[1].net;
    rows.push_back({size_text(point.bytes), fmt::format("{:.2f}", one.median_us), quartiles(one),
                    fmt::format("{:.2f}", two.median_us), quartiles(two),
                    fmt::format("{:.2f}", one.median_us / two.median_us)});
  }
  return table(rows);
}

}  // namespace shardwise::cli
