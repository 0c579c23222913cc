#include "shardwise/cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"
#include "shardwise/config/parameters.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;
using plan::Degrees;
using plan::MemoryByClass;
using plan::StepTime;
using plan::TrainingPlan;
using Axes = std::array<int64_t, 5>;

Axes axes_of(const Degrees& d) {
  return {d.tp, d.cp, d.pp, d.dp, d.ep};
}

std::string axes_text(const Degrees& d) {
  const std::string experts = d.ep > 1 ? fmt::format(" ep {}", d.ep) : "";
  return fmt::format("tp {} cp {} pp {} dp {}{}", d.tp, d.cp, d.pp, d.dp, experts);
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e9);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.1f}", seconds * 1e3);
}

std::string percent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

Row row_of(const PlanReport& report, const TrainingPlan& plan) {
  const Degrees& d = plan.degrees;
  const MemoryByClass& m = plan.memory;
  const StepTime& t = plan.time;
  return {fmt::to_string(d.tp),
          fmt::to_string(d.cp),
          fmt::to_string(d.pp),
          fmt::to_string(d.dp),
          fmt::to_string(d.ep),
          d.tp > 1 && d.has_sequence_parallel ? "yes" : "no",
          fmt::to_string(static_cast<int>(d.zero)),
          fmt::to_string(d.micro_batch_size),
          fmt::to_string(d.chunks),
          base::name_of(d.recompute),
          gigabytes(m.total()),
          gigabytes(m.weights + m.gradients + m.optimizer),
          gigabytes(m.activations),
          milliseconds(t.total()),
          milliseconds(t.compute),
          milliseconds(t.tensor_parallel),
          milliseconds(t.context_parallel),
          milliseconds(t.expert_parallel),
          milliseconds(t.pipeline + t.bubble),
          milliseconds(t.data_parallel),
          fmt::format("{:.0f}", report.tokens_per_second(plan)),
          percent(report.utilization(plan.flop.model, plan)),
          percent(report.utilization(plan.flop.hardware, plan))};
}

/// Leaves out the columns of cp and ep if every plan has one rank of them.
std::vector<Row> without_unused_axes(const std::vector<Row>& lines) {
  std::vector<Row> kept(lines.size());
  for (size_t column = 0; column < lines.front().size(); ++column) {
    const std::string& name = lines.front()[column];
    const bool is_unused =
        (name == "cp" || name == "ep") && std::all_of(lines.begin() + 1, lines.end(), [&](const Row& row) {
          return row[column] == "1" || row[column] == "0.0";
        });
    if (is_unused) continue;
    for (size_t line = 0; line < lines.size(); ++line) kept[line].push_back(lines[line][column]);
  }
  return kept;
}

/// Returns the first plan of each combination of axes: plans are sorted by time.
std::vector<TrainingPlan> best_by_axes(const plan::SearchResult& found) {
  std::vector<TrainingPlan> best;
  std::set<Axes> seen;
  for (const TrainingPlan& plan : found.plans)
    if (seen.insert(axes_of(plan.degrees)).second) best.push_back(plan);
  return best;
}

/// Returns the refusals of combinations of axes that no plan has, one each: the one that needs the least
/// memory.
std::vector<plan::Refused> refused_axes(const plan::SearchResult& found) {
  std::set<Axes> fitting;
  for (const TrainingPlan& plan : found.plans) fitting.insert(axes_of(plan.degrees));
  std::map<Axes, plan::Refused> least;
  for (const plan::Refused& refused : found.refused) {
    const Axes axes = axes_of(refused.degrees);
    if (fitting.contains(axes)) continue;
    plan::Refused& best = least.try_emplace(axes, refused).first->second;
    if (refused.needed_bytes < best.needed_bytes) best = refused;
  }
  std::vector<plan::Refused> list;
  for (const auto& [axes, refused] : least) list.push_back(refused);
  return list;
}

/// Returns ", 5.09B of them trained" if some are frozen.
std::string trained_text(const plan::TrainingTask& task) {
  if (task.frozen.empty()) return "";
  int64_t trained = 0;
  for (const config::ParameterInfo& parameter : config::ParameterTable(task.config))
    if (!task.frozen.contains(parameter.name)) trained += parameter.numel();
  return fmt::format(", {:.2f}B of them trained", static_cast<double>(trained) / 1e9);
}

std::string heading(const PlanReport& report) {
  const plan::TrainingTask& task = report.task;
  const int64_t per_node = report.machine.devices_per_node, nodes = (task.ranks + per_node - 1) / per_node;
  const plan::StateBytes states = task.state_bytes();
  return fmt::format(
      "plan: {}, {:.2f}B parameters{}, {} x {} in {} node{}; a step of {} x {} tokens in {}; "
      "{} + {} + {} bytes a parameter (weights, gradients, optimizer)\n",
      report.model, static_cast<double>(config::parameter_count(task.config)) / 1e9, trained_text(task),
      task.ranks, report.machine.name, nodes, nodes == 1 ? "" : "s", task.batch_size, task.sequence_length,
      task.element_bytes == 2 ? "bf16" : "fp32", states.weight, states.gradient, states.optimizer);
}

std::string refusals(const PlanReport& report, int64_t rows) {
  const std::vector<plan::Refused> list = refused_axes(report.found);
  std::string text;
  const int64_t count = std::ssize(list), shown = std::min(count, rows);
  for (int64_t i = 0; i < shown; ++i) {
    text += fmt::format("  {}: {}\n", axes_text(list[i].degrees), list[i].reason);
  }
  return shown < count ? text + fmt::format("  and {} more combinations\n", count - shown) : text;
}

ordered_json to_json(const Degrees& d) {
  return {{"tp", d.tp},
          {"cp", d.cp},
          {"pp", d.pp},
          {"dp", d.dp},
          {"ep", d.ep},
          {"sequence_parallel", d.has_sequence_parallel && d.tp > 1},
          {"zero", static_cast<int>(d.zero)},
          {"micro_batch_size", d.micro_batch_size},
          {"chunks", d.chunks},
          {"recompute", base::name_of(d.recompute)},
          {"split_batch", d.splits_batch}};
}

ordered_json to_json(const MemoryByClass& m) {
  return {{"total", m.total()},       {"weights", m.weights},         {"gradients", m.gradients},
          {"optimizer", m.optimizer}, {"activations", m.activations}, {"buffers", m.buffers}};
}

ordered_json to_json(const plan::StateBytes& bytes) {
  return {{"weights", bytes.weight}, {"gradients", bytes.gradient}, {"optimizer", bytes.optimizer}};
}

ordered_json to_json(const StepTime& t) {
  return {{"total", t.total()},
          {"compute", t.compute},
          {"tensor_parallel", t.tensor_parallel},
          {"context_parallel", t.context_parallel},
          {"expert_parallel", t.expert_parallel},
          {"pipeline", t.pipeline},
          {"bubble", t.bubble},
          {"data_parallel", t.data_parallel},
          {"optimizer", t.optimizer}};
}

}  // namespace

double PlanReport::utilization(double flop, const TrainingPlan& plan) const {
  const double peak =
      static_cast<double>(task.ranks) * machine.rates(task.element_bytes).flop_per_second.value;
  return flop / plan.time.total() / peak;
}

double PlanReport::tokens_per_second(const TrainingPlan& plan) const {
  return static_cast<double>(task.batch_size * task.sequence_length) / plan.time.total();
}

std::string to_text(const PlanReport& report, int64_t rows) {
  const std::vector<TrainingPlan> best = best_by_axes(report.found);
  std::vector<Row> lines = {{"tp",          "cp",          "pp",       "dp",        "ep", "sp",
                             "zero",        "micro-batch", "chunks",   "recompute", "GB", "states",
                             "activations", "step ms",     "compute",  "tp",        "cp", "ep",
                             "pipeline",    "dp",          "tokens/s", "MFU",       "HFU"}};
  for (size_t i = 0; i < best.size() && std::cmp_less(i, rows); ++i) lines.push_back(row_of(report, best[i]));
  std::string text = heading(report);
  if (!best.empty()) text += table(without_unused_axes(lines));
  text += fmt::format("{} plans fit, {} do not\n", report.found.plans.size(), report.found.refused.size());
  const std::string reasons = refusals(report, rows);
  return text + (reasons.empty() ? "" : "refused:\n" + reasons);
}

std::string why(const PlanReport& report) {
  const std::vector<TrainingPlan> best = best_by_axes(report.found);
  if (best.size() < 2) return "";
  const StepTime &first = best[0].time, &second = best[1].time;
  std::vector<std::pair<double, const char*>> parts = {
      {second.compute - first.compute, "compute"},
      {second.tensor_parallel - first.tensor_parallel, "collectives of tensor parallelism"},
      {second.context_parallel - first.context_parallel, "collectives of context parallelism"},
      {second.expert_parallel - first.expert_parallel, "collectives of expert parallelism"},
      {second.pipeline - first.pipeline, "messages between stages"},
      {second.bubble - first.bubble, "the pipeline's bubble"},
      {second.data_parallel - first.data_parallel, "collectives of data parallelism that no pass hides"},
      {second.optimizer - first.optimizer, "the optimizer"}};
  std::ranges::sort(parts, std::greater{}, [](const auto& part) { return std::abs(part.first); });
  std::string text = fmt::format("why: {} takes {} ms less than {}:", axes_text(best[0].degrees),
                                 milliseconds(second.total() - first.total()), axes_text(best[1].degrees));
  const char* separator = " ";
  for (const auto& [seconds, name] : parts) {
    if (std::abs(seconds) < 5e-5) break;  // less than the last digit
    text += fmt::format("{}{} ms {} in {}", std::exchange(separator, ", "), milliseconds(std::abs(seconds)),
                        seconds > 0 ? "less" : "more", name);
  }
  return text + "\n";
}

std::string to_json(const PlanReport& report) {
  ordered_json plans = ordered_json::array(), refused = ordered_json::array();
  for (const TrainingPlan& plan : report.found.plans)
    plans.push_back({{"degrees", to_json(plan.degrees)},
                     {"peak_stage", plan.peak_stage},
                     {"memory_bytes", to_json(plan.memory)},
                     {"seconds", to_json(plan.time)},
                     {"tokens_per_second", report.tokens_per_second(plan)},
                     {"utilization", report.utilization(plan.flop.model, plan)},
                     {"utilization_of_visible_keys", report.utilization(plan.flop_of_visible_keys, plan)},
                     {"hardware_utilization", report.utilization(plan.flop.hardware, plan)}});
  for (const plan::Refused& one : report.found.refused)
    refused.push_back(
        {{"degrees", to_json(one.degrees)}, {"reason", one.reason}, {"needed_bytes", one.needed_bytes}});
  return json_line({{"model", report.model},
                    {"parameters", config::parameter_count(report.task.config)},
                    {"active_parameters", config::active_parameter_count(report.task.config)},
                    {"layers", report.task.config.num_hidden_layers},
                    {"machine", report.machine.name},
                    {"devices_per_node", report.machine.devices_per_node},
                    {"ranks", report.task.ranks},
                    {"sequence_length", report.task.sequence_length},
                    {"batch_size", report.task.batch_size},
                    {"element_bytes", report.task.element_bytes},
                    {"state_bytes", to_json(report.task.state_bytes())},
                    {"overlaps_collectives", report.task.overlaps_collectives},
                    {"algorithm", plan::name_of(report.machine.algorithm)},
                    {"usable_bytes", report.usable_bytes},
                    {"plans", plans},
                    {"refused", refused}});
}

std::string to_text(const std::vector<plan::PublishedFigure>& figures) {
  std::vector<Row> rows = {{"figure", "of", "published", "planned", "error", "band", "source"}};
  int64_t outside = 0;
  for (const plan::PublishedFigure& f : figures) {
    outside += f.is_in_band() ? 0 : 1;
    rows.push_back({f.group, f.name, fmt::format("{:.6g}", f.published), fmt::format("{:.6g}", f.planned),
                    fmt::format("{:+.2f} %{}", 100 * f.error(), f.is_in_band() ? "" : " outside"),
                    fmt::format("{:+.2g} to {:+.2g} %", 100 * f.lowest, 100 * f.highest), f.source});
  }
  return table(rows) +
         fmt::format("{} of {} figures are in their bands\n", std::ssize(figures) - outside, figures.size());
}

std::string to_json(const std::vector<plan::PublishedFigure>& figures) {
  ordered_json list = ordered_json::array();
  for (const plan::PublishedFigure& f : figures)
    list.push_back({{"figure", f.group},
                    {"of", f.name},
                    {"published", f.published},
                    {"planned", f.planned},
                    {"error", f.error()},
                    {"band", {f.lowest, f.highest}},
                    {"in_band", f.is_in_band()},
                    {"source", f.source}});
  return json_line({{"figures", list}});
}

}  // namespace shardwise::cli
