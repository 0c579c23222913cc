#include "shardwise/cli/planned_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "shardwise/cli/saved_machine.h"
#include "shardwise/cli/train_report.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::cli {
namespace {

/// A run that takes longer than this is told how to get planned times.
constexpr double kLongRunSeconds = 60;

/// Returns whether plan/ has the time of such steps.
bool has_planned_time(const plan::TrainingTask& task, const train::TrainOptions& options,
                      const comm::Group& group) {
  return group.device().is_cpu() && task.element_bytes <= 4 && ranks_share_memory(group) &&
         !options.split_batch && options.pp_layers.empty() &&
         task.batch_size <= plan::kMostTokens / task.sequence_length;
}

}  // namespace

plan::TrainingTask training_task(const config::Config& config, const train::TrainOptions& options) {
  return {.config = config,
          .ranks = options.ranks(),
          .sequence_length = options.seq_len,
          .batch_size = options.batch_size * options.dp * train::most_micro_batches(options),
          .element_bytes = config::element_bytes(config),
          .hides_gradient_sums = false,
          .shares_weights = options.zero > 0 && options.zero < 3 && options.shared_weights == "auto",
          .frozen = {config, config::frozen_by("train", options.freeze, config).parameters}};
}

plan::Degrees degrees_of(const train::TrainOptions& options) {
  plan::Degrees degrees;
  degrees.tp = options.tp;
  degrees.pp = options.pp;
  degrees.dp = options.dp;
  degrees.chunks = options.virtual_stages;
  if (options.dp > 1) degrees.zero = static_cast<plan::ZeroStage>(options.zero);
  degrees.has_sequence_parallel = options.sequence_parallel;
  degrees.micro_batch_size = options.batch_size;
  degrees.recompute = train::recompute_of(options.recompute);
  return degrees;
}

std::optional<double> StepTimes::median() const {
  if (seconds.size() <= kFirstSteps) return std::nullopt;
  std::vector<double> others(seconds.begin() + kFirstSteps, seconds.end());
  std::ranges::sort(others);
  const size_t middle = others.size() / 2;
  return others.size() % 2 == 1 ? others[middle] : (others[middle - 1] + others[middle]) / 2;
}

StepTimes planned_steps(const train::Job& job, const comm::Group& group) {
  const train::TrainOptions& options = job.options();
  const plan::TrainingTask task = training_task(job.config(), options);
  StepTimes times{.ranks = group.size(),
                  .is_planned_for = has_planned_time(task, options, group),
                  .steps = options.last_step() - job.first_step()};
  if (!times.is_planned_for) return times;
  const std::optional<plan::Machine> machine = saved_machine("train", ranks_of(group));
  if (!machine) return times;
  times.machine = machine->memory_bytes.source;
  times.planned = plan::TrainingPlanner(task, *machine).evaluate(degrees_of(options)).time;
  return times;
}

std::string planned_text(const StepTimes& times) {
  if (!times.planned) return "";
  return fmt::format("; planned time: {} a step, {} for {} steps", in_seconds(times.planned->total()),
                     in_seconds(times.planned_run_seconds()), times.steps);
}

std::string compared_text(const StepTimes& times) {
  const double measured = std::accumulate(times.seconds.begin(), times.seconds.end(), 0.0);
  if (!times.planned) {
    if (!times.is_planned_for || measured < kLongRunSeconds) return "";
    return fmt::format(
        "\ntimes are not planned: shardwise bench machine --tp {} --save measures this host once",
        times.ranks);
  }
  const std::optional<double> median = times.median();
  const std::string step = median ? compared("step", *median, times.planned->total())
                                  : fmt::format("step: {} planned", in_seconds(times.planned->total()));
  return fmt::format("\n{}; {}", step, compared("all steps", measured, times.planned_run_seconds()));
}

nlohmann::ordered_json to_json(const StepTimes& times) {
  using Json = nlohmann::ordered_json;
  const auto planned = [&](const auto& seconds) { return times.planned ? Json(seconds()) : Json(); };
  const std::optional<double> median = times.median();
  return {{"planned_step_seconds", planned([&] { return times.planned->total(); })},
          {"planned_run_seconds", planned([&] { return times.planned_run_seconds(); })},
          {"planned_compute_seconds", planned([&] {
             return times.planned->compute + times.planned->optimizer + times.planned->bubble;
           })},
          {"planned_communication_seconds", planned([&] { return times.planned->communication(); })},
          {"planned_machine", planned([&] { return times.machine; })},
          {"measured_step_seconds", median ? Json(*median) : Json()}};
}

}  // namespace shardwise::cli
