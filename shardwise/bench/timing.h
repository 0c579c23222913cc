// Timing of calls that several ranks make together, with the same method for every candidate, and the results
// as JSON, with the same fields for every candidate (benchmarks/comm_peer.py writes those of other
// libraries).
//
// Each repetition runs every loop once, with as many calls as take about 10 ms, or a fifth of the time for
// all, so that noise of the machine affects all loops alike. A call that is not timed begins each loop, as
// between calls of its own, not of others, caches hold its data. The time of the slowest rank counts; the
// ranks exchange their times after the last repetition. This file depends on neither tensors nor groups,
// because benchmarks/comm_mpi.cpp is compiled with it too.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardwise::bench {

/// State of the input before each call: as the last call left it (warm), or just written by its rank, as by a
/// producer (rewritten).
enum class CacheState : uint8_t { warm, rewritten };
/// Returns "warm" or "rewritten".
std::string name_of(CacheState state);

/// A call that every rank makes at the same time, and the write of its input.
struct TimedCall {
  std::string name;
  std::function<void()> call, rewrite;
};

/// The collectives that the timing needs, and a progress callback.
struct Synchronizer {
  std::function<void()> barrier;
  /// Returns the elementwise maximum over the ranks. Collective.
  std::function<std::vector<double>(std::vector<double>)> max_over_ranks;
  std::function<void(int64_t done, int64_t repetitions)> after_repetition = [](int64_t, int64_t) {};
};

/// Statistics of the times of all repetitions.
struct Spread {
  double median_us, best_us, lower_quartile_us, upper_quartile_us;
};

struct Measured {
  std::string name;
  int64_t repetitions, calls_per_repetition;
  Spread raw, net;  // net: raw minus the time of rewriting alone in the same repetition
};

/// Returns the statistics of at least one time, in any order.
Spread spread_of(std::vector<double> us);

/// Times all of `timed` for about `seconds` in total, with at least five repetitions. Collective.
std::vector<Measured> measure(const std::vector<TimedCall>& timed, CacheState state, double seconds,
                              const Synchronizer& ranks);

/// Fills `bytes` bytes at `data`, a multiple of 4, with ones by ordinary stores: fp32 or, with `is_bf16`,
/// bf16.
void write_ones(void* data, int64_t bytes, bool is_bf16);

/// The calls at one size and cache state.
struct Point {
  int64_t bytes;
  CacheState state;
  std::vector<Measured> measured;
};

/// A benchmark of all_reduce.
struct Document {
  std::string candidate, version, method;  // method: the function called, and its caller
  int64_t tp;
  std::string dtype;
  std::vector<Point> points;
};

nlohmann::ordered_json to_json(const Spread& spread);
/// Returns the document, with one point for every call of every size and cache state.
nlohmann::ordered_json to_json(const Document& document);

}  // namespace shardwise::bench
