#include "shardwise/bench/part_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "shardwise/bench/collectives_alone.h"
#include "shardwise/bench/synchronizer.h"

namespace shardwise::bench {
namespace {

using at::Tensor;

/// A team's calls on one of its ranks.
class TeamCalls {
 public:
  TeamCalls(const PartShape& shape, int64_t ranks, const comm::Group& group)
      : costs_(plan::part_costs(workload_of(shape, ranks, group.has_symmetric_heap()))),
        together_(shape, group) {
    if (group.size() == 1) return;
    compute_ = std::make_unique<ProfiledPart>(local_shape(shape, ranks), comm::Group());
    communication_ = std::make_unique<CollectivesAlone>(shape, costs_.collectives, group);
  }

  void run_together() { together_.run(); }
  void compute() { compute_->run(); }
  void communicate() { communication_->run(); }
  const ProfiledPart& together() const { return together_; }
  const plan::PartCosts& costs() const { return costs_; }

  /// Returns the bytes that this rank sends in one call.
  int64_t sent_bytes(const comm::Group& group) {
    const int64_t before = group.counters().total().bytes;
    together_.run();
    return group.counters().total().bytes - before;
  }

 private:
  plan::PartCosts costs_;
  ProfiledPart together_;
  std::unique_ptr<ProfiledPart> compute_;  // null on one rank, as below: nothing is communicated
  std::unique_ptr<CollectivesAlone> communication_;
};

/// Appends the calls of a team: all three, or on one rank the first alone. `calls`: null if this rank waits.
void append_calls(std::vector<TimedCall>& timed, const RankTeam& team, TeamCalls* calls) {
  const auto append = [&](const char* name, void (TeamCalls::*call)()) {
    std::function<void()> run = [] {};
    if (calls) run = [=] { (calls->*call)(); };
    timed.push_back({name, run, /*rewrite=*/{}});
  };
  append("together", &TeamCalls::run_together);
  if (team.ranks == 1) return;
  append("compute", &TeamCalls::compute);
  append("communication", &TeamCalls::communicate);
}

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? std::ldexp(1.0, -8) : std::ldexp(1.0, -24);
}

double largest(const Tensor& x) {
  const double value = x.abs().max().item<double>();
  return std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
}

/// A sum of n products in fp32 errs by about √n·u of its value, and its result is rounded to the dtype once.
/// The bound is eight times both, of the largest value (docs/numerics.md §2 and §4).
OutputDifference difference_of(const Tensor& y, const Tensor& reference, const PartShape& shape) {
  constexpr double kTail = 8;
  const Tensor exact = reference.to(at::kDouble);
  const double scale = largest(exact), terms = static_cast<double>(shape.config.intermediate_size);
  const double rounding = unit_roundoff(shape.dtype) + std::sqrt(terms) * unit_roundoff(at::kFloat);
  return {largest(y.to(at::kDouble).sub(exact)), scale, kTail * rounding * scale};
}

/// Sets the differences from the first team's output.
void compare_outputs(const PartShape& shape, const std::vector<RankTeam>& teams,
                     const std::vector<std::unique_ptr<TeamCalls>>& calls,
                     std::vector<PartMeasured>& measured) {
  Tensor reference;
  for (size_t i = 0; i < teams.size(); ++i) {
    if (!calls[i]) continue;
    const Tensor y = calls[i]->together().output();
    if (i == 0) reference = y;
    if (i > 0 && reference.defined()) measured[i].difference = difference_of(y, reference, shape);
  }
}

Measured no_time(const Measured& of) {
  const Spread none{0, 0, 0, 0};
  return {"communication", of.repetitions, of.calls_per_repetition, none, none};
}

/// Takes a team's times, beginning at `next`.
PartMeasured measured_of(const RankTeam& team, std::vector<Measured>::const_iterator& next) {
  PartMeasured measured{team.ranks, team.is_oversubscribed, {}, 0, 0, *next, *next, no_time(*next)};
  ++next;
  if (team.ranks == 1) return measured;
  measured.compute = *next++;
  measured.communication = *next++;
  return measured;
}

}  // namespace

std::vector<PartMeasured> measure_part(const PartBench& bench, const std::vector<RankTeam>& teams,
                                       const comm::Group& world, const OnPartProgress& on_progress) {
  std::vector<std::unique_ptr<TeamCalls>> calls;
  std::vector<TimedCall> timed;
  for (const RankTeam& team : teams) {
    calls.push_back(team.group ? std::make_unique<TeamCalls>(bench.shape, team.ranks, *team.group) : nullptr);
    append_calls(timed, team, calls.back().get());
  }
  Synchronizer synchronizer = synchronizer_of(world);
  if (world.rank() == 0) synchronizer.after_repetition = on_progress;
  const std::vector<Measured> times =
      measure(timed, CacheState::warm, bench.seconds * static_cast<double>(teams.size()), synchronizer);
  auto next = times.begin();
  std::vector<PartMeasured> measured;
  for (size_t i = 0; i < teams.size(); ++i) {
    PartMeasured& of = measured.emplace_back(measured_of(teams[i], next));
    if (!calls[i]) continue;
    of.costs = calls[i]->costs();
    of.weight_bytes = calls[i]->together().weight_bytes();
    of.sent_bytes = calls[i]->sent_bytes(*teams[i].group);
  }
  if (bench.compares) compare_outputs(bench.shape, teams, calls, measured);
  return measured;
}

}  // namespace shardwise::bench
