#include "shardwise/cli/plan_learn.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/output.h"
#include "shardwise/plan/learn.h"
#include "shardwise/plan/machine_file.h"

namespace shardwise::cli {
namespace {

using plan::Correction;
using plan::ObservedStep;

/// Errors: c10::ValueError unless `is_met`. `got` may be text of a file.
void require(bool is_met, const std::string& rule, const std::string& got) {
  TORCH_CHECK_VALUE(is_met, "plan: --learn must have ", rule, "; got ", base::shortened(got), " [SW0794]");
}

/// Returns a figure of a report that is above zero, or not below with `or_zero`.
double figure(const base::Fields& run, const char* name, bool or_zero) {
  const double value = run.number(name);
  if (!(value > 0 || (or_zero && value == 0)))
    base::throw_invalid(run.label(name), or_zero ? "0 or more" : "above 0", nlohmann::json(value));
  return value;
}

/// Returns the step of a report of a run on `machine`.
ObservedStep step_in(const std::string& path, const plan::Machine& machine) {
  const nlohmann::json report = base::read_json(path);
  const bool has_run = report.is_object() && report.contains("run") && report["run"].is_object();
  require(has_run, "files of train --report", path);
  const base::Fields run(report["run"], path + ": run.");
  require(!run.is_null("planned_step_seconds") && !run.is_null("measured_step_seconds"),
          "runs with a planned time and three steps or more", path);
  require(run.integer("tp") == machine.devices_per_node,
          fmt::format("runs of the machine's {} ranks", machine.devices_per_node),
          fmt::format("{} in {}", run.integer("tp"), path));
  const nlohmann::json& name = run.at("planned_machine");
  const std::string planned_machine = name.is_string() ? name.get<std::string>() : base::shown(name);
  require(planned_machine == machine.memory_bytes.source,
          fmt::format("runs that were planned for the machine '{}'", machine.memory_bytes.source),
          fmt::format("'{}' in {}", planned_machine, path));
  return {figure(run, "planned_compute_seconds", /*or_zero=*/false),
          figure(run, "planned_communication_seconds", /*or_zero=*/true),
          figure(run, "measured_step_seconds", /*or_zero=*/false)};
}

void check_flags(const PlanOptions& o, const Flags& flags) {
  require(!o.learn.empty(), "reports of runs", "none beside --out");
  require(flags.is_given("machine"), "a file of --machine", "none");
  require(o.out.has_value(), "a file of --out", "none");
  const auto other = flags.given_except({"learn", "machine", "out", "json"});
  require(!other, "no other flags but --machine, --out and --json", "--" + other.value_or(""));
  std::vector<std::string> inputs = o.learn;
  inputs.push_back(o.machine);
  base::check_not_an_input("plan: --out", *o.out, inputs);
  base::check_new_or_regular_file("plan: --out", *o.out);
}

std::string result_text(const PlanOptions& o, const std::vector<ObservedStep>& steps,
                        const Correction& correction) {
  const double before = plan::mean_error(steps, {}), after = plan::mean_error(steps, correction);
  if (o.json)
    return json_line({{"runs", steps.size()},
                      {"compute", correction.compute},
                      {"communication", correction.communication},
                      {"mean_error_before", before},
                      {"mean_error_after", after},
                      {"machine", *o.out}});
  return fmt::format(
      "plan: of {} run{}, compute takes {:.3f} times its planned time and communication {:.3f} times; mean "
      "error {:.1f} % before, {:.1f} % after; wrote {}\n",
      steps.size(), steps.size() == 1 ? "" : "s", correction.compute, correction.communication, 100 * before,
      100 * after, *o.out);
}

}  // namespace

int learn_from_runs(const PlanOptions& o, const Flags& flags) {
  check_flags(o, flags);
  const plan::Machine machine = machine_of(o);
  std::vector<ObservedStep> steps;
  for (const std::string& path : o.learn) steps.push_back(step_in(path, machine));
  const Correction correction = plan::learn(steps);
  const std::string source =
      fmt::format("{}; learned from {} runs: compute x {:.3f}, communication x {:.3f}",
                  machine.memory_bytes.source, steps.size(), correction.compute, correction.communication);
  base::write_text(*o.out, plan::machine_text(plan::corrected(machine, correction, source)));
  print(result_text(o, steps, correction));
  return 0;
}

}  // namespace shardwise::cli
