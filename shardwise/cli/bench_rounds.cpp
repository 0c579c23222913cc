#include "shardwise/cli/bench_rounds.h"

#include <algorithm>
#include <cstring>

#include "shardwise/base/clock.h"

namespace shardwise::cli {
namespace {

constexpr double kRoundUs = 10e3;
constexpr double kFewestRounds = 5;

/// One step again and again, and the time of a step in every round.
struct Loop {
  std::function<void()> step;
  int64_t steps = 1;
  std::vector<double> us = {};
};

double time_us(const Loop& loop, const Meeting& ranks) {
  ranks.barrier();
  const base::Stopwatch clock;
  for (int64_t i = 0; i < loop.steps; ++i) loop.step();
  return clock.seconds() * 1e6 / static_cast<double>(loop.steps);
}

/// The least of three tries, so that one disturbance does not make the rounds short.
double tried_us(const Loop& loop, const Meeting& ranks) {
  const std::vector<double> us =
      ranks.largest({time_us(loop, ranks), time_us(loop, ranks), time_us(loop, ranks)});
  return *std::min_element(us.begin(), us.end());
}

/// Sets the steps of a round, the same on every rank; returns how long it will take.
double calibrate(Loop& loop, const Meeting& ranks) {
  loop.steps = 2;
  time_us(loop, ranks);  // pages are found, frequencies rise
  for (loop.steps = 1;; loop.steps *= 4) {
    const double us = tried_us(loop, ranks);
    if (us * static_cast<double>(loop.steps) < kRoundUs / 4) continue;
    loop.steps = std::max<int64_t>(1, static_cast<int64_t>(kRoundUs / us));
    return us * static_cast<double>(loop.steps);
  }
}

/// Of every call its loop; where inputs are rewritten, followed by one that only rewrites.
std::vector<Loop> loops_of(const std::vector<TimedCall>& timed, BufferUse use) {
  std::vector<Loop> loops;
  for (const TimedCall& t : timed) {
    if (use == BufferUse::warm) {
      loops.push_back({t.call});
      continue;
    }
    loops.push_back({[&t] {
      t.rewrite();
      t.call();
    }});
    loops.push_back({t.rewrite});
  }
  return loops;
}

int64_t calibrate_all(std::vector<Loop>& loops, BufferUse use, double seconds, const Meeting& ranks) {
  double round_us = 0;
  for (size_t i = 0; i < loops.size(); ++i) {
    const bool only_rewrites = use == BufferUse::rewritten && i % 2 == 1;
    if (only_rewrites) loops[i].steps = loops[i - 1].steps;
    round_us += only_rewrites ? kRoundUs / 2 : calibrate(loops[i], ranks);
  }
  return static_cast<int64_t>(std::max(seconds * 1e6 / round_us, kFewestRounds));
}

void run_rounds(std::vector<Loop>& loops, int64_t rounds, const Meeting& ranks) {
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < loops.size(); ++i) {
      Loop& loop = loops[round % 2 == 0 ? i : loops.size() - 1 - i];
      loop.us.push_back(time_us(loop, ranks));
    }
    ranks.after_round(round + 1, rounds);
  }
}

std::vector<double> difference(std::vector<double> from, const std::vector<double>& taken) {
  for (size_t i = 0; i < from.size(); ++i) from[i] -= taken[i];
  return from;
}

}  // namespace

Spread spread_of(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const size_t n = us.size();
  return {.median_us = (us[(n - 1) / 2] + us[n / 2]) / 2,
          .best_us = us[0],
          .lower_quartile_us = us[n / 4],
          .upper_quartile_us = us[3 * n / 4]};
}

std::vector<Measured> measure(const std::vector<TimedCall>& timed, BufferUse use, double seconds,
                              const Meeting& ranks) {
  std::vector<Loop> loops = loops_of(timed, use);
  const int64_t rounds = calibrate_all(loops, use, seconds, ranks);
  run_rounds(loops, rounds, ranks);
  for (Loop& loop : loops) loop.us = ranks.largest(loop.us);
  const size_t loops_each = loops.size() / timed.size();
  std::vector<Measured> all;
  for (size_t i = 0; i < timed.size(); ++i) {
    const Loop& calls = loops[i * loops_each];
    const std::vector<double> none(calls.us.size());
    const auto& rewriting = use == BufferUse::rewritten ? loops[i * loops_each + 1].us : none;
    all.push_back({timed[i].name, rounds, calls.steps, spread_of(calls.us),
                   spread_of(difference(calls.us, rewriting))});
  }
  return all;
}

void write_ones(void* data, int64_t bytes, bool is_bf16) {
  constexpr size_t kLine = 64;
  uint32_t line[kLine / sizeof(uint32_t)];
  std::fill(std::begin(line), std::end(line), is_bf16 ? 0x3f803f80u : 0x3f800000u);
  auto* at = static_cast<std::byte*>(data);
  size_t left = static_cast<size_t>(bytes);
  for (; left >= kLine; left -= kLine, at += kLine) std::memcpy(at, line, kLine);
  if (left > 0) std::memcpy(at, line, left);
}

}  // namespace shardwise::cli
