// How long calls take that several ranks make together, found in the same way for every contender.
//
// In rounds: each runs every loop once, of as many calls as take about 10 ms, so that a noisy machine is
// noisy for all alike. The slowest rank's time counts; the ranks tell each other theirs when all is measured.
// Knows neither tensors nor groups, for benchmarks/comm_mpi.cpp is compiled with it too.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shardwise::cli {

/// What benches take.
inline constexpr int64_t kMostRanks = 256;
inline constexpr double kLongestSeconds = 3600;

/// Before every call the input is left as the last call left it, or written anew by its rank, as by a
/// producer.
enum class BufferUse : uint8_t { warm, rewritten };

/// What every rank does at the same time.
struct TimedCall {
  std::string name;
  std::function<void()> call, rewrite;
};

/// How this rank meets the others.
struct Meeting {
  std::function<void()> barrier;
  /// Collective: of each value the largest that a rank has.
  std::function<std::vector<double>(std::vector<double>)> largest;
  std::function<void(int64_t done, int64_t rounds)> after_round = [](int64_t, int64_t) {};
};

/// Of the rounds' times.
struct Spread {
  double median_us, best_us, lower_quartile_us, upper_quartile_us;
};

struct Measured {
  std::string name;
  int64_t rounds, calls_per_round;
  Spread raw, net;  // net: less the time of rewriting alone in the same round
};

/// `us` in any order, one at least.
Spread spread_of(std::vector<double> us);

/// Collective: each of `timed`, measured for about `seconds` together, in five rounds at least.
std::vector<Measured> measure(const std::vector<TimedCall>& timed, BufferUse use, double seconds,
                              const Meeting& ranks);

/// Writes ones over `bytes` at `data`, a multiple of 4, with ordinary stores: fp32 or, with `is_bf16`, bf16.
void write_ones(void* data, int64_t bytes, bool is_bf16);

}  // namespace shardwise::cli
