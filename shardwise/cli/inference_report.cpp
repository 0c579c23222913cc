#include "shardwise/cli/inference_report.h"

#include <fmt/format.h>

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
  return static_cast<double>(report.task.texts) / plan.token.total();
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

Row row_of(const InferenceReport& report, const InferencePlan& plan) {
  return {fmt::to_string(plan.degrees.tp),
          fmt::to_string(plan.degrees.replicas),
          in_gigabytes(plan.memory.total()),
          in_gigabytes(plan.memory.weights),
          in_gigabytes(plan.memory.cache),
          in_milliseconds(plan.prompts.total()),
          in_milliseconds(plan.token.total()),
          in_milliseconds(plan.token.tensor_parallel),
          fmt::format("{:.1f}", tokens_per_second(report, plan)),
          fmt::format("{:.2f}", plan.seconds(report.task.new_tokens))};
}

ordered_json json_of(const plan::ForwardTime& time) {
  return {{"total", time.total()}, {"compute", time.compute}, {"tensor_parallel", time.tensor_parallel}};
}

}  // namespace

std::string to_text(const InferenceReport& report, int64_t rows) {
  std::vector<Row> lines = {{"tp", "replicas", "GB", "weights", "cache", "prompts ms", "token ms", "of it tp",
                             "tokens/s", "all texts s"}};
  const auto& [plans, refused] = report.found;
  for (size_t i = 0; i < plans.size() && std::cmp_less(i, rows); ++i)
    lines.push_back(row_of(report, plans[i]));
  std::string text = heading_of(report);
  if (!plans.empty()) text += table(lines);
  text += fmt::format("{} plans fit, {} do not\n", plans.size(), refused.size());
  if (!refused.empty()) text += "refused:\n";
  for (const plan::RefusedInference& one : refused)
    text += fmt::format("  tp {} replicas {}: {}\n", one.degrees.tp, one.degrees.replicas, one.reason);
  return text;
}

std::string to_json(const InferenceReport& report) {
  ordered_json plans = ordered_json::array(), refused = ordered_json::array();
  for (const InferencePlan& plan : report.found.plans)
    plans.push_back({{"degrees", {{"tp", plan.degrees.tp}, {"replicas", plan.degrees.replicas}}},
                     {"memory_bytes",
                      {{"total", plan.memory.total()},
                       {"weights", plan.memory.weights},
                       {"cache", plan.memory.cache},
                       {"buffers", plan.memory.buffers}}},
                     {"prompt_seconds", json_of(plan.prompts)},
                     {"token_seconds", json_of(plan.token)},
                     {"tokens_per_second", tokens_per_second(report, plan)},
                     {"seconds", plan.seconds(report.task.new_tokens)}});
  for (const plan::RefusedInference& one : report.found.refused)
    refused.push_back(
        {{"degrees", {{"tp", one.degrees.tp}, {"replicas", one.degrees.replicas}}}, {"reason", one.reason}});
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
