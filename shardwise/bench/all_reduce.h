// Times all_reduce on this machine: next to a memcpy of the same size, or one-shot next to two-shot.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/timing.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::bench {

/// The sizes in bytes to measure, each in every cache state for `seconds`.
struct AllReduceBench {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<CacheState> states;
  double seconds;
};

/// The current measurement: the point and its repetition, both counted from 1.
struct PointProgress {
  int64_t bytes;
  CacheState state;
  size_t point, points;
  int64_t repetition, repetitions;
};
using OnPointProgress = std::function<void(const PointProgress&)>;

/// Times three calls at every size and cache state, in this order: all_reduce_ of a tensor on the symmetric
/// heap ("all_reduce"), all_reduce_ of a tensor outside it ("all_reduce_unregistered"), and a copy of the
/// same size by each rank at the same time ("memcpy"). Rank 0 calls `on_progress`. Collective.
std::vector<Point> measure_all_reduce(const AllReduceBench& bench, const comm::Group& group,
                                      const OnPointProgress& on_progress);

/// Two groups of the same ranks: one uses one-shot all_reduce for all sizes that it accepts, the other
/// two-shot.
struct BothAlgorithms {
  comm::Group one_shot, two_shot;
};

/// Connects both groups, under names derived from `job`. Collective.
BothAlgorithms connect_both(const comm::Group& group, const std::string& job,
                            std::chrono::milliseconds timeout);

/// Times "one_shot" and "two_shot" on the symmetric heap at every size and cache state, interleaved. Rank 0
/// calls `on_progress`. Collective.
std::vector<Point> measure_both(const AllReduceBench& bench, const BothAlgorithms& groups,
                                const OnPointProgress& on_progress);

/// Returns the one-shot limit in bytes that minimizes the geometric mean of the measured calls' times; 0 if
/// two-shot is faster at every size.
int64_t best_one_shot_bytes(const std::vector<Point>& points);

}  // namespace shardwise::bench
