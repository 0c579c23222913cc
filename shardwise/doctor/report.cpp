#include "shardwise/doctor/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/comm/gather_values.h"

namespace shardwise::doctor {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// True for checks of the model itself, on which all results depend.
bool is_about_model(const Check& check) {
  return check.name == "parameters" || check.name == "weights";
}

std::string line_of(const Comparison& comparison, const Deviation& bug) {
  if (!std::isfinite(bug.difference))
    return fmt::format("bug at {}, {}: NaN or Inf{} ({})", bug.label.module, bug.label.text(),
                       std::isfinite(bug.scale) ? "" : ", also at TP=1", comparison.name());
  return fmt::format(
      "bug at {}, {}: differs from TP=1 by {:.2e}, the bound is {:.2e}, the largest value is {:.2e} ({})",
      bug.label.module, bug.label.text(), bug.difference, bug.bound, bug.scale, comparison.name());
}

}  // namespace

double Deviation::bound_ratio() const {
  if (!is_within_bound() && !(bound > 0 && difference > 0)) return kInfinity;
  return difference > 0 ? difference / bound : 0;
}

double Deviation::relative() const {
  return scale > 0 ? difference / scale : difference > 0 ? kInfinity : difference;
}

const Deviation* Comparison::first_bug() const {
  for (const Deviation& deviation : deviations)
    if (!deviation.is_within_bound()) return &deviation;
  return nullptr;
}

std::vector<LargestDeviations> Comparison::by_layer() const {
  std::vector<LargestDeviations> layers;
  for (const Deviation& deviation : deviations) {
    auto layer = std::ranges::find(layers, deviation.label.module, &LargestDeviations::module);
    if (layer == layers.end()) layer = layers.insert(layer, {deviation.label.module});
    const Deviation*& worst = deviation.label.is_gradient ? layer->gradient : layer->activation;
    if (!worst || deviation.bound_ratio() > worst->bound_ratio()) worst = &deviation;
  }
  return layers;
}

std::string Comparison::name() const {
  return fmt::format("{}, {}, {}", test_case, run_config.name(tp), dtype_name(run_config.dtype));
}

std::optional<std::string> Report::bug_summary() const {
  for (const Check& check : checks)
    if (!check.passed && is_about_model(check)) return "bug in the " + check.title() + ": " + check.detail;
  for (const bool is_fp64 : {true, false}) {
    for (const Comparison& comparison : comparisons) {
      const Deviation* bug = comparison.run_config.is_fp64() == is_fp64 ? comparison.first_bug() : nullptr;
      if (bug) return line_of(comparison, *bug);
    }
  }
  for (const Check& check : checks)
    if (!check.passed) return "bug in the " + check.title() + ": " + check.detail;
  for (const TrafficLine& line : traffic) {
    if (line.matches()) continue;
    return fmt::format(
        "bug in the communication of rank {} ({}, {}, {}): {} calls of {} with {} bytes; by formula {} with "
        "{}",
        line.rank, line.test_case, line.run_config.name(line.tp), line.phase, line.counted.calls,
        line.collective, line.counted.bytes, line.expected.calls, line.expected.bytes);
  }
  return std::nullopt;
}

Check verdict_of_all_ranks(const Check& passed, const std::string& error, const comm::Group& group) {
  const std::string local = error.empty() ? "" : fmt::format("on rank {} {}", group.rank(), error);
  const std::string first = comm::first_text(local, group);
  return first.empty() ? passed : Check{passed.name, passed.scope, false, first};
}

}  // namespace shardwise::doctor
