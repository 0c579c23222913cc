#include "shardwise/bench/step_profile.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "shardwise/bench/synchronizer.h"
#include "shardwise/comm/counters.h"
#include "shardwise/comm/gather_values.h"

namespace shardwise::bench {
namespace {

constexpr int kRecordedSteps = 3;

bool is_of_optimizer(std::string_view op) {
  constexpr std::array<std::string_view, 3> kOps = {"square_sum", "adamw", "zero_gradient"};
  return std::ranges::count(kOps, op) > 0;
}

double& part_of(StepParts& parts, const base::ProfiledRun& run) {
  if (run.depth == 0) return parts.other;
  if (is_collective(run.op)) return parts.communication;
  return is_of_optimizer(run.op) ? parts.optimizer : parts.compute;
}

StepParts record(TrainingStep& step) {
  base::Profile profile;
  {
    const base::Profile::Recording recording(profile);
    for (int i = 0; i < kRecordedSteps; ++i) step.run();
  }
  return parts_of(profile);
}

StepParts mean_over_ranks(const StepParts& own, const comm::Group& group) {
  const auto ranks = static_cast<double>(group.size());
  StepParts mean;
  for (const StepParts& one : comm::gather_values(own, group)) {
    mean.compute += one.compute / ranks;
    mean.communication += one.communication / ranks;
    mean.waiting += one.waiting / ranks;
    mean.optimizer += one.optimizer / ranks;
    mean.other += one.other / ranks;
  }
  return mean;
}

using Steps = std::vector<std::unique_ptr<TrainingStep>>;

/// Returns a model for every team, null for those without this rank.
Steps steps_of(const StepBench& bench, const std::vector<RankTeam>& teams) {
  Steps steps;
  for (const RankTeam& team : teams)
    steps.push_back(team.group
                        ? std::make_unique<TrainingStep>(bench.config, bench.dtype, bench.shape, *team.group)
                        : nullptr);
  return steps;
}

std::vector<Measured> time_steps(const StepBench& bench, const Steps& steps, const comm::Group& world,
                                 const OnStepProgress& on_progress) {
  std::vector<TimedCall> calls;
  for (const auto& step : steps) {
    calls.push_back({"step",
                     [step = step.get()] {
                       if (step) step->run();
                     },
                     /*rewrite=*/{}});
  }
  Synchronizer synchronizer = synchronizer_of(world);
  if (world.rank() == 0) synchronizer.after_repetition = on_progress;
  return measure(calls, CacheState::warm, bench.seconds * static_cast<double>(steps.size()), synchronizer);
}

}  // namespace

bool is_collective(std::string_view op) {
  for (int i = 0; i <= static_cast<int>(comm::Op::fused_reduce_scatter); ++i)
    if (op == comm::name(static_cast<comm::Op>(i))) return true;
  return false;
}

StepParts parts_of(const base::Profile& profile) {
  StepParts parts;
  double steps = 0;
  for (const base::ProfiledRun& run : profile.runs()) {
    steps += run.depth == 0;
    part_of(parts, run) += static_cast<double>(run.duration_ns - run.nested_ns - run.waiting_ns) / 1e6;
    parts.waiting += static_cast<double>(run.waiting_ns) / 1e6;
  }
  for (double* part : {&parts.compute, &parts.communication, &parts.waiting, &parts.optimizer, &parts.other})
    *part /= std::max(steps, 1.0);
  return parts;
}

std::vector<StepProfile> profile_steps(const StepBench& bench, const std::vector<RankTeam>& teams,
                                       const comm::Group& world, const OnStepProgress& on_progress) {
  const Steps steps = steps_of(bench, teams);
  const std::vector<Measured> times = time_steps(bench, steps, world, on_progress);
  std::vector<StepProfile> profiles;
  for (size_t i = 0; i < teams.size(); ++i) {
    world.barrier();
    StepProfile& profile =
        profiles.emplace_back(teams[i].ranks, teams[i].is_oversubscribed, /*weight_bytes=*/0, times[i]);
    if (!steps[i]) continue;
    profile.weight_bytes = steps[i]->weight_bytes();
    profile.parts = mean_over_ranks(record(*steps[i]), *teams[i].group);
  }
  return profiles;
}

}  // namespace shardwise::bench
