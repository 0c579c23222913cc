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

namespace shardwise::cli {
namespace {

/// Returns 1 if a figure is outside its band.
int check_published_figures(const PlanOptions& o) {
  TORCH_CHECK_VALUE(!o.model && o.ranks == 0, "plan: --check has its own models; got ",
                    o.model ? "--model " + base::shortened(*o.model) : fmt::format("--ranks {}", o.ranks),
                    " [SW0763]");
  const std::vector<plan::PublishedFigure> figures = plan::published_figures();
  print(o.json ? to_json(figures) : to_text(figures));
  return std::ranges::all_of(figures, &plan::PublishedFigure::is_in_band) ? 0 : 1;
}

int plan_training(const PlanOptions& o) {
  const plan::Pins pins = pins_of(o);
  const plan::TrainingTask task = training_task(o);
  const plan::Machine machine = machine_of(o);
  const PlanReport report{*o.model, task, machine, plan::search(task, machine, pins, memory_cap_in_bytes(o))};
  print(o.json ? to_json(report) : to_text(report, o.rows) + (o.why ? why(report) : ""));
  return report.found.plans.empty() ? 1 : 0;
}

int plan_inference(const PlanOptions& o) {
  const plan::InferenceTask task = inference_task(o);
  const plan::Machine machine = machine_of(o);
  const InferenceReport report{*o.model, task, machine,
                               plan::search(task, machine, pins_of(o).tp, memory_cap_in_bytes(o))};
  print(o.json ? to_json(report) : to_text(report, o.rows));
  return report.found.plans.empty() ? 1 : 0;
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
  return options.plans_inference() ? plan_inference(options) : plan_training(options);
}

}  // namespace shardwise::cli
