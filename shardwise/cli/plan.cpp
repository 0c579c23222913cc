// `shardwise plan`: ranks the ways to split a training step, or generation, over the devices of a cluster.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/decision_report.h"
#include "shardwise/cli/inference_report.h"
#include "shardwise/cli/largest_report.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/plan_learn.h"
#include "shardwise/cli/plan_options.h"
#include "shardwise/cli/plan_report.h"
#include "shardwise/cli/shapes_report.h"

namespace shardwise::cli {
namespace {

/// Returns the most ranks that --min-gpus tries.
int64_t most_ranks(const plan::Machine& machine) {
  return machine.across_nodes ? int64_t{1} << 16 : machine.devices_per_node;
}

/// Returns 1 if a figure is outside its band.
int check_published_figures(const PlanOptions& o) {
  const std::vector<plan::PublishedFigure> figures = plan::published_figures();
  print(o.json ? to_json(figures) : to_text(figures));
  return std::ranges::all_of(figures, &plan::PublishedFigure::is_in_band) ? 0 : 1;
}

int print_matrix(const PlanOptions& o) {
  const std::vector<plan::Decision> decisions = plan::decision_matrix();
  print(o.json ? to_json(decisions) : to_text(decisions));
  return 0;
}

PlanReport training_report(const PlanOptions& o) {
  const plan::TrainingTask task = training_task(o);
  const plan::Machine machine = machine_of(o);
  return {*o.model, task, machine,
          plan::search(task, machine, pins_of(o), memory_cap_in_bytes("plan", o.memory_cap))};
}

InferenceReport inference_report(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const plan::Machine machine = machine_of(o);
  return {*o.model, task, machine,
          plan::search(task, machine, pins_of(o).tp, memory_cap_in_bytes("plan", o.memory_cap))};
}

/// Calls report(options) for --ranks, or with --min-gpus for numbers of ranks until a plan fits.
template <class Report>
auto report_of(PlanOptions o, const Report& report) {
  if (!o.min_gpus) return report(o);
  const plan::Pins pins = pins_of(o);
  o.ranks = pins.tp.value_or(1) * pins.cp.value_or(1) * pins.pp.value_or(1) * pins.dp.value_or(1);
  const int64_t most = most_ranks(machine_of(o));
  check_range("plan", "--min-gpus with degrees whose product", o.ranks, 1, most);
  auto found = report(o);
  while (found.found.plans.empty() && 2 * o.ranks <= most) {
    o.ranks *= 2;
    found = report(o);
  }
  return found;
}

int plan_training(const PlanOptions& o) {
  const PlanReport report = report_of(o, training_report);
  print(o.json ? to_json(report) : to_text(report, o.rows) + (o.why ? why(report) : ""));
  return report.found.plans.empty() ? 1 : 0;
}

int plan_inference(const PlanOptions& o) {
  const InferenceReport report = report_of(o, inference_report);
  print(o.json ? to_json(report) : to_text(report, o.rows));
  return report.found.plans.empty() ? 1 : 0;
}

/// Returns 1 if nothing fits.
int print_largest_training(const PlanOptions& o) {
  const plan::Grown grown = *o.largest == "seq" ? plan::Grown::sequence : plan::Grown::micro_batch;
  const std::vector<plan::LargestTraining> all =
      plan::largest_training(training_task(o), machine_of(o), pins_of(o), memory_cap_in_bytes(o), grown);
  print(o.json ? to_json(all, grown) : to_text(all, grown));
  return std::ranges::any_of(all, [](const auto& one) { return one.size > 0; }) ? 0 : 1;
}

int print_largest_inference(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const std::vector<plan::LargestInference> all =
      plan::largest_inference(task, machine_of(o), pins_of(o).tp, memory_cap_in_bytes(o));
  const int64_t tokens = task.prompt_tokens + task.new_tokens;
  print(o.json ? to_json(all, tokens) : to_text(all, tokens));
  return std::ranges::any_of(all, [](const auto& one) { return one.texts > 0; }) ? 0 : 1;
}

/// Returns the tensors of the workload, and the collectives of a block under every mode that the task has.
ShapesReport shapes_report(const PlanOptions& o) {
  plan::Workload workload = shapes_workload(o);
  ShapesReport report{workload.tp, plan::sharded_tensors(workload), {}};
  for (const plan::Parallelism mode : {plan::Parallelism::tp, plan::Parallelism::tp_sp}) {
    if (o.plans_inference() && mode == plan::Parallelism::tp_sp) continue;
    workload.parallelism = mode;
    for (const plan::BlockCollective& one : plan::block_collectives(workload))
      if (!o.plans_inference() || !one.is_backward) report.collectives.push_back(one);
  }
  return report;
}

int print_shapes(const PlanOptions& o) {
  const ShapesReport report = shapes_report(o);
  print(o.json ? to_json(report) : to_text(report));
  return 0;
}

}  // namespace

int plan_command(const Call& call) {
  PlanOptions options;
  Flags flags(
      "plan",
      "Ranks the ways to split a training step or generation over a cluster: memory by class, time by "
      "part, and why others are refused. Arithmetic only; runs nothing.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  if (!options.learn.empty() || options.out) return learn_from_runs(options, flags);
  if (options.check || options.matrix) {
    check_has_no_model(options);
    return options.check ? check_published_figures(options) : print_matrix(options);
  }
  validate(options);
  if (options.largest)
    return options.plans_inference() ? print_largest_inference(options) : print_largest_training(options);
  if (options.shapes) return print_shapes(options);
  return options.plans_inference() ? plan_inference(options) : plan_training(options);
}

}  // namespace shardwise::cli
