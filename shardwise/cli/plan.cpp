// `shardwise plan`: ranks the ways to split a training step, or generation, over the devices of a cluster.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/inference_report.h"
#include "shardwise/cli/output.h"
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
  const auto refuse = [](bool is_given, const std::string& flag) {
    TORCH_CHECK_VALUE(!is_given, "plan: --check has its own models; got ", flag, " [SW0763]");
  };
  refuse(o.model.has_value(), "--model " + base::shortened(o.model.value_or("")));
  refuse(o.ranks != 0, fmt::format("--ranks {}", o.ranks));
  refuse(o.min_gpus, "--min-gpus");
  refuse(o.shapes, "--shapes");
  refuse(o.plans_inference(), "--task infer");
  const std::vector<plan::PublishedFigure> figures = plan::published_figures();
  print(o.json ? to_json(figures) : to_text(figures));
  return std::ranges::all_of(figures, &plan::PublishedFigure::is_in_band) ? 0 : 1;
}

PlanReport training_report(const PlanOptions& o) {
  const plan::TrainingTask task = training_task(o);
  const plan::Machine machine = machine_of(o);
  return {*o.model, task, machine, plan::search(task, machine, pins_of(o), memory_cap_in_bytes(o))};
}

InferenceReport inference_report(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const plan::Machine machine = machine_of(o);
  return {*o.model, task, machine, plan::search(task, machine, pins_of(o).tp, memory_cap_in_bytes(o))};
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

int print_shapes(const PlanOptions& o) {
  const plan::Workload workload = shapes_workload(o);
  const std::vector<plan::ShardedTensor> tensors = plan::sharded_tensors(workload);
  print(o.json ? to_json(tensors, workload.tp) : to_text(tensors, workload.tp));
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
  if (options.check) return check_published_figures(options);
  validate(options);
  if (options.shapes) return print_shapes(options);
  return options.plans_inference() ? plan_inference(options) : plan_training(options);
}

}  // namespace shardwise::cli
