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
#include "shardwise/cli/plan_output.h"
#include "shardwise/cli/plan_page.h"
#include "shardwise/cli/plan_report.h"
#include "shardwise/cli/shapes_report.h"

namespace shardwise::cli {
namespace {

/// Returns the most ranks that --min-gpus tries.
int64_t most_ranks(const plan::Machine& machine) {
  return machine.across_nodes ? int64_t{1} << 16 : machine.devices_per_node;
}

/// Fails if a figure is outside its band.
PlanOutput check_published_figures(const PlanOptions& o) {
  const std::vector<plan::PublishedFigure> figures = plan::published_figures();
  return {o.json ? to_json(figures) : to_text(figures),
          std::ranges::all_of(figures, &plan::PublishedFigure::is_in_band) ? 0 : 1};
}

PlanOutput matrix(const PlanOptions& o) {
  const std::vector<plan::Decision> decisions = plan::decision_matrix();
  return {o.json ? to_json(decisions) : to_text(decisions), 0};
}

PlanReport training_report(const PlanOptions& o) {
  const plan::TrainingTask task = training_task(o);
  const plan::Machine machine = machine_of(o);
  const std::optional<int64_t> cap = memory_cap_in_bytes("plan", o.memory_cap);
  return {*o.model, task, machine, plan::search(task, machine, pins_of(o), cap), machine.usable_bytes(cap)};
}

InferenceReport inference_report(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const plan::Machine machine = machine_of(o);
  const std::optional<int64_t> cap = memory_cap_in_bytes("plan", o.memory_cap);
  const plan::Pins pins = pins_of(o);
  return {*o.model, task, machine,
          plan::search(task, machine, {.tp = pins.tp, .pp = pins.pp, .ep = pins.ep}, cap),
          machine.usable_bytes(cap)};
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

PlanOutput plan_training(const PlanOptions& o) {
  const PlanReport report = report_of(o, training_report);
  return {o.json ? to_json(report) : to_text(report, o.rows) + (o.why ? why(report) : ""),
          report.found.plans.empty() ? 1 : 0};
}

PlanOutput plan_inference(const PlanOptions& o) {
  const InferenceReport report = report_of(o, inference_report);
  return {o.json ? to_json(report) : to_text(report, o.rows), report.found.plans.empty() ? 1 : 0};
}

/// Fails if nothing fits.
PlanOutput largest_step(const PlanOptions& o) {
  const plan::Grown grown = *o.largest == "seq" ? plan::Grown::sequence : plan::Grown::micro_batch;
  const std::vector<plan::LargestTraining> all = plan::largest_training(
      training_task(o), machine_of(o), pins_of(o), memory_cap_in_bytes("plan", o.memory_cap), grown);
  const bool fits = std::ranges::any_of(all, [](const auto& one) { return one.size > 0; });
  return {o.json ? to_json(all, grown) : to_text(all, grown), fits ? 0 : 1};
}

PlanOutput largest_cache(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const std::vector<plan::LargestInference> all =
      plan::largest_inference(task, machine_of(o), pins_of(o).tp, memory_cap_in_bytes("plan", o.memory_cap));
  const int64_t tokens = task.prompt_tokens + task.new_tokens;
  const bool fits = std::ranges::any_of(all, [](const auto& one) { return one.texts > 0; });
  return {o.json ? to_json(all, tokens) : to_text(all, tokens), fits ? 0 : 1};
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

PlanOutput list_shapes(const PlanOptions& o) {
  const ShapesReport report = shapes_report(o);
  return {o.json ? to_json(report) : to_text(report), 0};
}

}  // namespace

PlanOutput plan_output(const PlanOptions& o) {
  if (o.check || o.matrix) {
    check_has_no_model(o);
    return o.check ? check_published_figures(o) : matrix(o);
  }
  validate(o);
  if (o.largest) return o.plans_inference() ? largest_cache(o) : largest_step(o);
  if (o.shapes) return list_shapes(o);
  return o.plans_inference() ? plan_inference(o) : plan_training(o);
}

int plan_command(const Call& call) {
  PlanOptions options;
  Flags flags(
      "plan",
      "Ranks the ways to split a training step or generation over a cluster: memory by class, time by "
      "part, and why others are refused. Arithmetic only; runs nothing.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  if (!options.learn.empty() || options.out) return learn_from_runs(options, flags);
  if (options.html) return write_page(options, flags.given());
  const PlanOutput output = plan_output(options);
  print(output.text);
  return output.exit_code;
}

}  // namespace shardwise::cli
