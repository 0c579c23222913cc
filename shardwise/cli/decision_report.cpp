#include "shardwise/cli/decision_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;
using plan::Decision;
using plan::Degrees;

/// Returns the degrees that are not one.
std::string axes_that_split(const Degrees& d) {
  std::string text;
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, size);
  };
  add("tp", d.tp);
  add("cp", d.cp);
  add("pp", d.pp);
  add("dp", d.dp);
  add("ep", d.ep);
  return text.empty() ? "one rank" : text;
}

std::string plan_text(const std::optional<plan::TrainingPlan>& plan) {
  if (!plan) return "does not fit";
  const Degrees& d = plan->degrees;
  const std::string recompute =
      d.recompute == base::Recompute::none ? "" : fmt::format(", recompute {}", name_of(d.recompute));
  return fmt::format("{}, zero {}{}", axes_that_split(d), static_cast<int>(d.zero), recompute);
}

std::string milliseconds_of(const std::optional<plan::TrainingPlan>& plan) {
  return plan ? fmt::format("{:.0f}", plan->time.total() * 1e3) : "";
}

ordered_json json_of(const std::optional<plan::TrainingPlan>& plan) {
  if (!plan) return nullptr;
  const Degrees& d = plan->degrees;
  return {{"tp", d.tp},
          {"cp", d.cp},
          {"pp", d.pp},
          {"dp", d.dp},
          {"ep", d.ep},
          {"zero", static_cast<int>(d.zero)},
          {"seconds", plan->time.total()},
          {"memory_bytes", plan->memory.total()}};
}

}  // namespace

std::string to_text(const std::vector<Decision>& decisions) {
  std::vector<Row> rows{
      {"model", "devices", "sequences x tokens", "fastest plan", "step ms", "advised", "step ms", "by"}};
  for (const Decision& one : decisions)
    rows.push_back({one.model, fmt::format("{} {}", one.task.ranks, one.machine),
                    fmt::format("{} x {}", one.task.batch_size, one.task.sequence_length),
                    plan_text(one.fastest), milliseconds_of(one.fastest), plan_text(one.advised),
                    milliseconds_of(one.advised), one.source});
  return table(rows);
}

std::string to_json(const std::vector<Decision>& decisions) {
  ordered_json list = ordered_json::array();
  for (const Decision& one : decisions)
    list.push_back({{"model", one.model},
                    {"machine", one.machine},
                    {"ranks", one.task.ranks},
                    {"batch_size", one.task.batch_size},
                    {"sequence_length", one.task.sequence_length},
                    {"fastest", json_of(one.fastest)},
                    {"advised", json_of(one.advised)},
                    {"source", one.source}});
  return json_line({{"decisions", list}});
}

}  // namespace shardwise::cli
