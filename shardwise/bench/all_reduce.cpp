#include "shardwise/bench/all_reduce.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>
#include <map>

#include "shardwise/bench/synchronizer.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::bench {
namespace {

/// The tensors of one size. They start as zeros, so repeated sums stay zero; rewritten tensors hold ones,
/// which one call sums to the number of ranks. Nothing overflows.
struct Buffers {
  at::Tensor registered, unregistered, from, to;

  Buffers(int64_t bytes, at::ScalarType dtype, const comm::Group& group) {
    const int64_t numel = bytes / int64_t(c10::elementSize(dtype));
    registered = group.empty({numel}, dtype);
    for (at::Tensor* x : {&unregistered, &from, &to})
      *x = at::empty({numel}, at::TensorOptions().dtype(dtype));
    for (const at::Tensor* each : {&registered, &unregistered, &from, &to})
      std::memset(each->mutable_data_ptr(), 0, each->nbytes());
  }
};

std::function<void()> rewriting(const at::Tensor& x) {
  return [data = x.mutable_data_ptr(), bytes = int64_t(x.nbytes()),
          is_bf16 = x.scalar_type() == at::kBFloat16] { write_ones(data, bytes, is_bf16); };
}

std::vector<TimedCall> calls_next_to_memcpy(Buffers& b, const comm::Group& group) {
  const auto reducing = [&group](at::Tensor& x) { return [&group, &x] { group.all_reduce_(x); }; };
  const auto copying = [to = b.to.mutable_data_ptr(), from = b.from.const_data_ptr(),
                        bytes = b.from.nbytes()] { std::memcpy(to, from, bytes); };
  return {{"all_reduce", reducing(b.registered), rewriting(b.registered)},
          {"all_reduce_unregistered", reducing(b.unregistered), rewriting(b.unregistered)},
          {"memcpy", copying, rewriting(b.from)}};
}

/// Returns an all_reduce of a tensor of zeros or, if rewritten, ones: as in Buffers, nothing overflows.
TimedCall call_of_algorithm(const char* name, const comm::Group& group, int64_t bytes, at::ScalarType dtype) {
  at::Tensor x = group.empty({bytes / int64_t(c10::elementSize(dtype))}, dtype);
  std::memset(x.mutable_data_ptr(), 0, x.nbytes());
  return {name, [&group, x]() mutable { group.all_reduce_(x); }, rewriting(x)};
}

/// Calls `measure_point(bytes, state, synchronizer)` for every size and cache state.
template <class MeasurePoint>
std::vector<Point> measure_points(const AllReduceBench& bench, const comm::Group& group,
                                  const OnPointProgress& on_progress, const MeasurePoint& measure_point) {
  Synchronizer synchronizer = synchronizer_of(group);
  const size_t total = bench.sizes.size() * bench.states.size();
  std::vector<Point> points;
  for (const int64_t bytes : bench.sizes) {
    for (const CacheState state : bench.states) {
      if (group.rank() == 0) {
        synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
          on_progress({bytes, state, points.size() + 1, total, done, repetitions});
        };
      }
      points.push_back({bytes, state, measure_point(bytes, state, synchronizer)});
    }
  }
  return points;
}

comm::Group connect_with(int64_t one_shot_bytes, const comm::Group& group, const std::string& job,
                         std::chrono::milliseconds timeout) {
  comm::shm::ConnectOptions options(job, group.rank(), group.size());
  options.secret = comm::gather_values(base::Secret::random(), group)[0];
  options.timeout = timeout;
  options.one_shot_bytes = one_shot_bytes;
  return comm::shm::connect(options);
}

}  // namespace

std::vector<Point> measure_all_reduce(const AllReduceBench& bench, const comm::Group& group,
                                      const OnPointProgress& on_progress) {
  return measure_points(
      bench, group, on_progress, [&](int64_t bytes, CacheState state, const Synchronizer& synchronizer) {
        Buffers buffers(bytes, bench.dtype, group);
        return measure(calls_next_to_memcpy(buffers, group), state, bench.seconds, synchronizer);
      });
}

BothAlgorithms connect_both(const comm::Group& group, const std::string& job,
                            std::chrono::milliseconds timeout) {
  return {connect_with(comm::shm::kMaxOneShotBytes, group, job + "/one_shot", timeout),
          connect_with(0, group, job + "/two_shot", timeout)};
}

std::vector<Point> measure_both(const AllReduceBench& bench, const BothAlgorithms& groups,
                                const OnPointProgress& on_progress) {
  return measure_points(bench, groups.one_shot, on_progress,
                        [&](int64_t bytes, CacheState state, const Synchronizer& synchronizer) {
                          return measure({call_of_algorithm("one_shot", groups.one_shot, bytes, bench.dtype),
                                          call_of_algorithm("two_shot", groups.two_shot, bytes, bench.dtype)},
                                         state, bench.seconds, synchronizer);
                        });
}

// The cost of a limit is the sum of the logarithms of its calls' times. Only differences between limits
// matter, and those are a running sum over the sizes.
int64_t best_one_shot_bytes(const std::vector<Point>& points) {
  std::map<int64_t, double> gains;  // by size: log(two_shot / one_shot)
  for (const Point& point : points) {
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

}  // namespace shardwise::bench
