#include "shardwise/bench/timing.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/base/cpu_name.h"

namespace shardwise::bench {
namespace {

constexpr double kRepetitionUs = 10e3;
constexpr double kMinRepetitions = 5;
constexpr double kReheatedUs = 100e3;  // a call that takes longer displaces what caches hold of it by itself

/// A loop over one step, and the time per step in every repetition.
struct Loop {
  std::function<void()> step;
  int64_t steps = 1;
  bool begins_untimed = false;  // with a step that reads into caches what other loops displaced
  std::vector<double> us = {};
};

double time_us(const Loop& loop, const Synchronizer& ranks) {
  if (loop.begins_untimed) loop.step();
  ranks.barrier();
  const base::Stopwatch clock;
  for (int64_t i = 0; i < loop.steps; ++i) loop.step();
  return clock.seconds() * 1e6 / static_cast<double>(loop.steps);
}

/// Returns the smallest of three measurements, so that one disturbance does not make the repetitions too
/// short.
double estimate_us(const Loop& loop, const Synchronizer& ranks) {
  const std::vector<double> us =
      ranks.max_over_ranks({time_us(loop, ranks), time_us(loop, ranks), time_us(loop, ranks)});
  return *std::min_element(us.begin(), us.end());
}

/// Sets the loop's steps per repetition of about `repetition_us`, equal on every rank, and returns its
/// estimated time.
double calibrate(Loop& loop, double repetition_us, const Synchronizer& ranks) {
  loop.steps = 2;
  time_us(loop, ranks);  // warm-up: page faults, CPU frequency
  for (loop.steps = 1;; loop.steps *= 4) {
    const double us = estimate_us(loop, ranks);
    if (us * static_cast<double>(loop.steps) < repetition_us / 4) continue;
    loop.steps = std::max<int64_t>(1, static_cast<int64_t>(repetition_us / us));
    loop.begins_untimed = us < kReheatedUs;
    return us * static_cast<double>(loop.steps + loop.begins_untimed);
  }
}

/// Returns a loop for every call; if inputs are rewritten, a loop that only rewrites follows each.
std::vector<Loop> loops_of(const std::vector<TimedCall>& timed, CacheState state) {
  std::vector<Loop> loops;
  for (const TimedCall& t : timed) {
    if (state == CacheState::warm) {
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

int64_t calibrate_all(std::vector<Loop>& loops, CacheState state, double seconds, const Synchronizer& ranks) {
  const double of_loop_us = std::min(kRepetitionUs, seconds * 1e6 / kMinRepetitions);
  double repetition_us = 0;
  for (size_t i = 0; i < loops.size(); ++i) {
    const bool only_rewrites = state == CacheState::rewritten && i % 2 == 1;
    if (only_rewrites) {
      loops[i].steps = loops[i - 1].steps;
      loops[i].begins_untimed = loops[i - 1].begins_untimed;
    }
    repetition_us += only_rewrites ? of_loop_us / 2 : calibrate(loops[i], of_loop_us, ranks);
  }
  return static_cast<int64_t>(std::max(seconds * 1e6 / repetition_us, kMinRepetitions));
}

void run_repetitions(std::vector<Loop>& loops, int64_t repetitions, const Synchronizer& ranks) {
  for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
    for (size_t i = 0; i < loops.size(); ++i) {
      Loop& loop = loops[repetition % 2 == 0 ? i : loops.size() - 1 - i];
      loop.us.push_back(time_us(loop, ranks));
    }
    ranks.after_repetition(repetition + 1, repetitions);
  }
}

std::vector<double> difference(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

nlohmann::ordered_json to_json(const Point& point, const Measured& m) {
  return {{"bytes", point.bytes},
          {"mode", name_of(point.state)},
          {"call", m.name},
          {"repetitions", m.repetitions},
          {"calls_per_repetition", m.calls_per_repetition},
          {"raw", to_json(m.raw)},
          {"net", to_json(m.net)}};
}

}  // namespace

std::string name_of(CacheState state) {
  return state == CacheState::warm ? "warm" : "rewritten";
}

Spread spread_of(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const size_t n = us.size();
  return {.median_us = (us[(n - 1) / 2] + us[n / 2]) / 2,
          .best_us = us[0],
          .lower_quartile_us = us[n / 4],
          .upper_quartile_us = us[3 * n / 4]};
}

std::vector<Measured> measure(const std::vector<TimedCall>& timed, CacheState state, double seconds,
                              const Synchronizer& ranks) {
  std::vector<Loop> loops = loops_of(timed, state);
  const int64_t repetitions = calibrate_all(loops, state, seconds, ranks);
  run_repetitions(loops, repetitions, ranks);
  for (Loop& loop : loops) loop.us = ranks.max_over_ranks(loop.us);
  const size_t loops_each = loops.size() / timed.size();
  std::vector<Measured> all;
  for (size_t i = 0; i < timed.size(); ++i) {
    const Loop& calls = loops[i * loops_each];
    const std::vector<double> zeros(calls.us.size());
    const auto& rewriting = state == CacheState::rewritten ? loops[i * loops_each + 1].us : zeros;
    all.push_back({timed[i].name, repetitions, calls.steps, spread_of(calls.us),
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

nlohmann::ordered_json to_json(const Spread& s) {
  return {{"median_us", s.median_us},
          {"best_us", s.best_us},
          {"lower_quartile_us", s.lower_quartile_us},
          {"upper_quartile_us", s.upper_quartile_us}};
}

nlohmann::ordered_json to_json(const Document& document) {
  nlohmann::ordered_json json{{"candidate", document.candidate},
                              {"version", document.version},
                              {"method", document.method},
                              {"cpu", base::cpu_name()},
                              {"tp", document.tp},
                              {"dtype", document.dtype},
                              {"points", nlohmann::ordered_json::array()}};
  for (const Point& point : document.points) {
    for (const Measured& measured : point.measured) json["points"].push_back(to_json(point, measured));
  }
  return json;
}

}  // namespace shardwise::bench
