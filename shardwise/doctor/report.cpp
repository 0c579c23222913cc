#include "shardwise/doctor/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardwise::doctor {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What everything after it is computed from.
bool is_of_model(const Audit& audit) {
  return audit.name == "parameters" || audit.name == "weights";
}

std::string line_of(const Comparison& comparison, const Deviation& bug) {
  if (!std::isfinite(bug.difference))
    return fmt::format("bug at {}, {}: holds what is not finite{} ({})", bug.label.where, bug.label.text(),
                       std::isfinite(bug.scale) ? "" : ", at TP=1 too", comparison.name());
  return fmt::format("bug at {}, {}: off by {:.2e} where it is at most {:.2e}; the bound is {:.2e} ({})",
                     bug.label.where, bug.label.text(), bug.difference, bug.scale, bug.bound,
                     comparison.name());
}

}  // namespace

double Deviation::share() const {
  if (!holds() && !(bound > 0 && difference > 0)) return kInfinity;
  return difference > 0 ? difference / bound : 0;
}

double Deviation::relative() const {
  return scale > 0 ? difference / scale : difference > 0 ? kInfinity : difference;
}

const Deviation* Comparison::first_bug() const {
  for (const Deviation& deviation : deviations)
    if (!deviation.holds()) return &deviation;
  return nullptr;
}

std::vector<Worst> Comparison::by_layer() const {
  std::vector<Worst> layers;
  for (const Deviation& deviation : deviations) {
    auto layer = std::ranges::find(layers, deviation.label.where, &Worst::where);
    if (layer == layers.end()) layer = layers.insert(layer, {deviation.label.where});
    const Deviation*& worst = deviation.label.is_gradient ? layer->gradient : layer->activation;
    if (!worst || deviation.share() > worst->share()) worst = &deviation;
  }
  return layers;
}

std::string Comparison::name() const {
  return fmt::format("{}, {}, {}", task, way.name(tp), dtype_name(way.dtype));
}

std::optional<std::string> Report::finding() const {
  for (const Audit& audit : audits)
    if (!audit.holds && is_of_model(audit)) return "bug in the " + audit.title() + ": " + audit.detail;
  for (const bool is_exact : {true, false}) {
    for (const Comparison& comparison : comparisons) {
      const Deviation* bug = comparison.way.is_exact() == is_exact ? comparison.first_bug() : nullptr;
      if (bug) return line_of(comparison, *bug);
    }
  }
  for (const Audit& audit : audits)
    if (!audit.holds) return "bug in the " + audit.title() + ": " + audit.detail;
  for (const Traffic& line : traffic) {
    if (line.holds()) continue;
    return fmt::format("bug in what rank {} sends ({}, {}, {}): {} {} of {} bytes, by formula {} of {}",
                       line.rank, line.task, line.way.name(line.tp), line.phase, line.counted.calls,
                       line.collective, line.counted.bytes, line.expected.calls, line.expected.bytes);
  }
  return std::nullopt;
}

}  // namespace shardwise::doctor
