#include "shardwise/cli/bench_comm_tune.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>

#include "shardwise/cli/bench_meeting.h"
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

/// A call on a tensor of zeros or, where it is rewritten, ones: nothing overflows (bench_comm.cpp).
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

BothForms connect_both(const comm::Group& group, const std::string& job, std::chrono::milliseconds timeout) {
  return {connect_with(int64_t(comm::shm::kInlineBytes), group, job + "/one_shot", timeout),
          connect_with(0, group, job + "/two_shot", timeout)};
}

std::vector<CommPoint> measure_both(const CommBench& bench, const BothForms& groups,
                                    const std::function<void(const std::string&)>& show) {
  const Meeting meeting = meeting_of(groups.one_shot);
  std::vector<CommPoint> points;
  for (const int64_t bytes : bench.sizes) {
    for (const BufferUse use : bench.uses) {
      if (groups.one_shot.rank() == 0) show(fmt::format("bench comm: {} {}", size_text(bytes), name_of(use)));
      const std::vector<TimedCall> calls{timed_call("one_shot", groups.one_shot, bytes, bench.dtype),
                                         timed_call("two_shot", groups.two_shot, bytes, bench.dtype)};
      points.push_back({bytes, use, measure(calls, use, bench.seconds, meeting)});
    }
  }
  return points;
}

// Every cut's cost is the sum of its calls' logarithms; only differences matter, and those are a running sum.
int64_t best_one_shot_bytes(const std::vector<CommPoint>& points) {
  std::map<int64_t, double> gains;  // by size, of one shot for two
  for (const CommPoint& point : points) {
    gains[point.bytes] += std::log(point.measured[1].raw.median_us / point.measured[0].raw.median_us);
  }
  double gain = 0, most = 0;
  int64_t limit = 0;
  for (const auto& [bytes, more] : gains) {
    gain += more;
    if (gain <= most) continue;
    most = gain;
    limit = bytes;
  }
  return limit;
}

std::string tuning_text(const std::vector<CommPoint>& points, BufferUse use) {
  std::vector<Row> rows{{"size", "one shot us", "quartiles", "two shots us", "quartiles", "one of two"}};
  for (const CommPoint& point : points) {
    if (point.use != use) continue;
    const Spread &one = point.measured[0].net, &two = point.measured[1].net;
    rows.push_back({size_text(point.bytes), fmt::format("{:.2f}", one.median_us), quartiles(one),
                    fmt::format("{:.2f}", two.median_us), quartiles(two),
                    fmt::format("{:.2f}", one.median_us / two.median_us)});
  }
  return table(rows);
}

}  // namespace shardwise::cli
