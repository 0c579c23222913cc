#include "shardwise/cli/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "shardwise/cli/planned_step.h"

namespace shardwise::cli {
namespace {

std::span<const RunStep> steps_that_count(const RunFile& run) {
  const std::span<const RunStep> steps(run.steps);
  return steps.size() > kFirstSteps ? steps.subspan(kFirstSteps) : steps;
}

template <class Value>
double mean_over(std::span<const RunStep> steps, const Value& value_of) {
  double sum = 0;
  for (const RunStep& step : steps) sum += value_of(step);
  return sum / static_cast<double>(steps.size());
}

/// Returns a parameter's name with * for the number after "layers." or "h.".
std::string without_layer(const std::string& name) {
  for (const std::string before : {"layers.", "h."}) {
    const size_t at = name.find(before);
    if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) continue;
    const size_t begin = at + before.size(), end = name.find_first_not_of("0123456789", begin);
    if (end != begin && end != std::string::npos) return name.substr(0, begin) + "*" + name.substr(end);
  }
  return name;
}

}  // namespace

std::vector<StepMeans> means_by_rank(const RunFile& run) {
  const std::span<const RunStep> steps = steps_that_count(run);
  const bool has_waits =
      std::ranges::all_of(steps, [](const RunStep& step) { return !step.wait_ms.empty(); });
  std::vector<StepMeans> means;
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    StepMeans& mean = means.emplace_back();
    mean.step_ms = mean_over(steps, [&](const RunStep& step) { return step.step_ms[rank]; });
    mean.comm_ms = mean_over(steps, [&](const RunStep& step) { return step.comm_ms[rank]; });
    if (has_waits) mean.wait_ms = mean_over(steps, [&](const RunStep& step) { return step.wait_ms[rank]; });
  }
  return means;
}

double tokens_per_second(const RunFile& run) {
  const double ms = mean_over(steps_that_count(run), [](const RunStep& step) { return step.slowest_ms(); });
  return ms > 0 ? 1e3 * static_cast<double>(run.tokens_per_step) / ms : 0;
}

LossDifference loss_difference(const RunFile& a, const RunFile& b) {
  LossDifference difference;
  auto of_b = b.steps.begin();
  for (const RunStep& of_a : a.steps) {
    while (of_b != b.steps.end() && of_b->step < of_a.step) ++of_b;
    if (of_b == b.steps.end()) break;
    if (of_b->step != of_a.step) continue;
    difference.steps += 1;
    difference.equal += of_a.loss == of_b->loss;
    difference.largest = std::max(difference.largest, std::abs(of_a.loss - of_b->loss));
  }
  return difference;
}

std::vector<ShapeRow> shape_rows(const std::vector<train::ShardShapes>& shapes) {
  std::vector<ShapeRow> rows;
  for (const train::ShardShapes& one : shapes) {
    const std::string name = without_layer(one.name);
    const auto row = std::ranges::find_if(rows, [&](const ShapeRow& other) {
      return other.name == name && other.shape == one.shape && other.by_rank == one.by_rank;
    });
    if (row == rows.end())
      rows.push_back({name, 1, one.shape, one.by_rank});
    else
      row->parameters += 1;
  }
  return rows;
}

std::string ranks_text(const RunFile& run) {
  return fmt::format("{}{}{}{}", run.pp > 1 ? fmt::format("{} stages x ", run.pp) : "",
                     run.dp > 1 ? fmt::format("{} x ", run.dp) : "", run.tp,
                     run.sequence_parallel ? " with sp" : "");
}

}  // namespace shardwise::cli
