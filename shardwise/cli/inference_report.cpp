#include "shardwise/cli/inference_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"
#include "shardwise/config/parameters.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;
using plan::InferencePlan;

std::string in_gigabytes(int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9);
}

std::string in_milliseconds(double seconds) {
  return fmt::format("{:.2f}", seconds * 1e3);
}

/// Returns the tokens per second of all texts while they are generated.
double tokens_per_second(const InferenceReport& report, const InferencePlan& plan) {
  return static_cast<double>(report.task.texts) / plan.seconds_per_token();
}

std::string format_of(const plan::InferenceTask& task) {
  const std::string dense = task.element_bytes == 2 ? "bf16" : "fp32";
  return task.config.quantization ? task.config.quantization->text() + " and " + dense : dense;
}

std::string heading_of(const InferenceReport& report) {
  const plan::InferenceTask& task = report.task;
  return fmt::format("plan: {}, {:.2f}B parameters in {}, {} x {}; {} text{} of {} + {} tokens\n",
                     report.model,
                     static_cast<double>(config::parameter_count(config::dense(task.config))) / 1e9,
                     format_of(task), task.ranks, report.machine.name, task.texts, task.texts == 1 ? "" : "s",
                     task.prompt_tokens, task.new_tokens);
}

std::string degrees_text(const plan::InferenceDegrees& d) {
  const auto axis = [](const char* name, int64_t ranks) {
    return ranks > 1 ? fmt::format(" {} {}", name, ranks) : "";
  };
  return fmt::format("tp {}{}{} replicas {}", d.tp, axis("pp", d.pp), axis("ep", d.ep), d.replicas);
}

/// A column, and the cell of a plan that does not use it; empty: every plan uses it.
struct Column {
  const char* heading;
  const char* unused;
};
constexpr Column kColumns[] = {
    {"tp", ""},           {"pp", "1"},          {"ep", "1"},           {"replicas", ""}, {"GB", ""},
    {"weights", ""},      {"cache", ""},        {"prompts ms", ""},    {"token ms", ""}, {"of it tp", ""},
    {"of it ep", "0.00"}, {"of it pp", "0.00"}, {"pipelined ms", "-"}, {"tokens/s", ""}, {"all texts s", ""}};

Row row_of(const InferenceReport& report, const InferencePlan& plan) {
  return {fmt::to_string(plan.degrees.tp),
          fmt::to_string(plan.degrees.pp),
          fmt::to_string(plan.degrees.ep),
          fmt::to_string(plan.degrees.replicas),
          in_gigabytes(plan.memory.total()),
          in_gigabytes(plan.memory.weights),
          in_gigabytes(plan.memory.cache),
          in_milliseconds(plan.prompts.total()),
          in_milliseconds(plan.token.total()),
          in_milliseconds(plan.token.tensor_parallel),
          in_milliseconds(plan.token.expert_parallel),
          in_milliseconds(plan.token.pipeline),
          plan.pipelined_token ? in_milliseconds(*plan.pipelined_token) : "-",
          fmt::format("{:.1f}", tokens_per_second(report, plan)),
          fmt::format("{:.2f}", plan.seconds(report.task.new_tokens))};
}

/// Returns headings and rows, without the columns that no plan uses.
std::vector<Row> with_used_columns(const std::vector<Row>& rows) {
  std::vector<Row> lines(rows.size() + 1);
  for (size_t column = 0; column < std::size(kColumns); ++column) {
    const Column& of = kColumns[column];
    const bool is_used = std::ranges::any_of(rows, [&](const Row& row) { return row[column] != of.unused; });
    if (!is_used) continue;
    lines[0].push_back(of.heading);
    for (size_t i = 0; i < rows.size(); ++i) lines[i + 1].push_back(rows[i][column]);
  }
  return lines;
}

std::string refusals_of(const std::vector<plan::RefusedInference>& refused, int64_t rows) {
  const int64_t count = std::ssize(refused), shown = std::min(count, rows);
  std::string text;
  for (int64_t i = 0; i < shown; ++i)
    text += fmt::format("  {}: {}\n", degrees_text(refused[i].degrees), refused[i].reason);
  return shown < count ? text + fmt::format("  and {} more splits\n", count - shown) : text;
}

ordered_json json_of(const plan::InferenceDegrees& d) {
  return {{"tp", d.tp}, {"pp", d.pp}, {"ep", d.ep}, {"replicas", d.replicas}};
}

ordered_json json_of(const plan::InferenceMemory& memory) {
  return {{"total", memory.total()},
          {"weights", memory.weights},
          {"cache", memory.cache},
          {"buffers", memory.buffers}};
}

ordered_json json_of(const plan::ForwardTime& time) {
  return {{"total", time.total()},
          {"compute", time.compute},
          {"tensor_parallel", time.tensor_parallel},
          {"expert_parallel", time.expert_parallel},
          {"pipeline", time.pipeline}};
}

}  // namespace

std::string to_text(const InferenceReport& report, int64_t rows) {
  const auto& [plans, refused] = report.found;
  std::vector<Row> lines;
  for (size_t i = 0; i < plans.size() && std::cmp_less(i, rows); ++i)
    lines.push_back(row_of(report, plans[i]));
  std::string text = heading_of(report);
  if (!plans.empty()) text += table(with_used_columns(lines));
  text += fmt::format("{} plans fit, {} do not\n", plans.size(), refused.size());
  return refused.empty() ? text : text + "refused:\n" + refusals_of(refused, rows);
}

std::string to_json(const InferenceReport& report) {
  ordered_json plans = ordered_json::array(), refused = ordered_json::array();
  for (const InferencePlan& plan : report.found.plans)
    plans.push_back({{"degrees", json_of(plan.degrees)},
                     {"peak_stage", plan.peak_stage},
                     {"memory_bytes", json_of(plan.memory)},
                     {"prompt_seconds", json_of(plan.prompts)},
                     {"token_seconds", json_of(plan.token)},
                     {"pipelined_token_seconds",
                      plan.pipelined_token ? ordered_json(*plan.pipelined_token) : ordered_json(nullptr)},
                     {"tokens_per_second", tokens_per_second(report, plan)},
                     {"seconds", plan.seconds(report.task.new_tokens)}});
  for (const plan::RefusedInference& one : report.found.refused)
    refused.push_back({{"degrees", json_of(one.degrees)}, {"reason", one.reason}});
  const plan::InferenceTask& task = report.task;
  return json_line({{"model", report.model},
                    {"parameters", config::parameter_count(config::dense(task.config))},
                    {"format", format_of(task)},
                    {"machine", report.machine.name},
                    {"ranks", task.ranks},
                    {"texts", task.texts},
                    {"prompt_tokens", task.prompt_tokens},
                    {"new_tokens", task.new_tokens},
                    {"usable_bytes", report.usable_bytes},
                    {"plans", plans},
                    {"refused", refused}});
}

}  // namespace shardwise::cli
