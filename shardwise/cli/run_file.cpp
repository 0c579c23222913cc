#include "shardwise/cli/run_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "shardwise/base/json.h"

namespace shardwise::cli {

using base::Fields;
using nlohmann::json;

namespace {

/// Returns the list `name`, which must have `size` elements, or at least one if there is no size.
const json& list_in(const Fields& fields, const char* name, std::optional<size_t> size = std::nullopt) {
  const json& list = fields.at(name);
  const bool has_size = list.is_array() && (size ? list.size() == *size : !list.empty());
  const std::string rule =
      size ? "a list of " + std::to_string(*size) + ", one for each rank" : "a list that is not empty";
  if (!has_size) base::throw_invalid(fields.label(name), rule, list);
  return list;
}

double checked_number(const json& value, const std::string& label) {
  if (!value.is_number() || value.get<double>() < 0) base::throw_invalid(label, "a number from 0", value);
  return value.get<double>();
}

int64_t checked_count(const Fields& fields, const char* name, int64_t min) {
  const int64_t count = fields.integer(name);
  if (count < min) base::throw_invalid(fields.label(name), std::to_string(min) + " or more", json(count));
  return count;
}

/// Returns a number of ranks along an axis, small enough that those of two multiply.
int64_t checked_degree(const Fields& fields, const char* name) {
  constexpr int64_t kMax = int64_t{1} << 30;
  const int64_t degree = checked_count(fields, name, 1);
  if (degree > kMax) base::throw_invalid(fields.label(name), "at most " + std::to_string(kMax), json(degree));
  return degree;
}

std::string any_text(const Fields& fields, const char* name) {
  const json& value = fields.at(name);
  if (!value.is_string()) base::throw_invalid(fields.label(name), "a string", value);
  return value.get<std::string>();
}

std::vector<double> times_by_rank(const Fields& fields, const char* name, size_t ranks) {
  std::vector<double> times;
  for (const json& time : list_in(fields, name, ranks))
    times.push_back(checked_number(time, fields.label(name)));
  return times;
}

RunStep step_of(const json& object, const std::string& where, size_t ranks) {
  const Fields fields(object, where);
  RunStep step{.step = fields.integer("step"),
               .loss = fields.number("loss"),
               .step_ms = times_by_rank(fields, "step_ms", ranks),
               .comm_ms = times_by_rank(fields, "comm_ms", ranks)};
  if (fields.find("val_loss")) step.val_loss = fields.number("val_loss");
  if (fields.find("wait_ms")) step.wait_ms = times_by_rank(fields, "wait_ms", ranks);
  return step;
}

MemoryByClass memory_in(const Fields& fields, const char* name) {
  const Fields classes(fields.at(name), fields.label(name) + ".");
  MemoryByClass memory{};
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool is_required = i + 1 < memory.size();
    if (is_required || classes.find(kMemoryClasses[i]))
      memory[i] = checked_count(classes, kMemoryClasses[i], 0);
  }
  return memory;
}

RunRank rank_of(const json& object, const std::string& where) {
  const Fields fields(object, where);
  RunRank rank{.comm_bytes = checked_count(fields, "comm_bytes", 0),
               .expected_comm_bytes = checked_count(fields, "expected_comm_bytes", 0),
               .memory = memory_in(fields, "memory")};
  if (fields.find("copied_bytes")) rank.copied_bytes = checked_count(fields, "copied_bytes", 0);
  if (fields.find("expected_memory")) rank.expected_memory = memory_in(fields, "expected_memory");
  return rank;
}

std::vector<int64_t> sizes_of(const json& value, const std::string& label) {
  const bool is_list = value.is_array() && std::ranges::all_of(value, [](const json& size) {
                         return size.is_number_integer() && size.get<int64_t>() >= 0;
                       });
  if (!is_list) base::throw_invalid(label, "a list of sizes", value);
  return value.get<std::vector<int64_t>>();
}

train::ShardShapes shapes_of(const json& object, const std::string& where, size_t ranks) {
  const Fields fields(object, where);
  train::ShardShapes shapes{
      any_text(fields, "name"), sizes_of(fields.at("shape"), fields.label("shape")), {}};
  for (const json& shard : list_in(fields, "rank_shapes", ranks))
    shapes.by_rank.push_back(sizes_of(shard, fields.label("rank_shapes")));
  return shapes;
}

RunFile run_in(const Fields& run) {
  RunFile file{.description = any_text(run, "description"),
               .parameters = checked_count(run, "parameters", 1),
               .tp = checked_degree(run, "tp"),

               .dp = run.find("dp") ? checked_degree(run, "dp") : 1,
               .pp = run.find("pp") ? checked_degree(run, "pp") : 1,
               .tokens_per_step = checked_count(run, "tokens_per_step", 1)};
  run.or_flag("sequence_parallel", file.sequence_parallel);
  const auto milliseconds_in = [&](const char* name) {
    return 1e3 * checked_number(run.at(name), run.label(name));
  };
  if (run.find("planned_step_seconds"))
    file.planned = {milliseconds_in("planned_compute_seconds"),
                    milliseconds_in("planned_communication_seconds")};
  if (run.find("measured_step_seconds")) file.measured_ms = milliseconds_in("measured_step_seconds");
  return file;
}

void check_ascends(const std::vector<RunStep>& steps, const std::string& path) {
  for (size_t i = 1; i < steps.size(); ++i)
    if (steps[i].step <= steps[i - 1].step)
      base::throw_invalid(path + ": the numbers of steps", "ascending", json(steps[i].step));
}

RunFile read_run(const std::string& path) {
  const json document = base::read_json(path);
  const bool is_report = document.is_object() && document.contains("run") && document["run"].is_object();
  TORCH_CHECK_VALUE(is_report, "report: RUN must be a file that train --report wrote; got ", path,
                    " [SW0820]");
  const Fields fields(document, path + ": ");
  RunFile file = run_in(Fields(document["run"], path + ": run."));
  const auto ranks = static_cast<size_t>(file.pp * file.dp * file.tp), shards = static_cast<size_t>(file.tp);
  for (const json& rank : list_in(fields, "ranks", ranks))
    file.ranks.push_back(rank_of(rank, path + ": ranks."));
  for (const json& step : list_in(fields, "steps"))
    file.steps.push_back(step_of(step, path + ": steps.", ranks));
  check_ascends(file.steps, path);
  for (const json& parameter : list_in(fields, "parameters"))
    file.shapes.push_back(shapes_of(parameter, path + ": parameters.", shards));
  return file;
}

/// Returns the names of the files; where two are equal, all paths.
std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(std::filesystem::path(path).filename().string());
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) == sorted.end() ? names : paths;
}

}  // namespace

int64_t total(const MemoryByClass& memory) {
  return std::accumulate(memory.begin(), memory.end(), int64_t{0});
}

double RunStep::slowest_ms() const {
  return *std::ranges::max_element(step_ms);
}

std::vector<RunFile> read_runs(const std::vector<std::string>& paths) {
  const std::vector<std::string> names = names_of(paths);
  std::vector<RunFile> runs;
  for (size_t i = 0; i < paths.size(); ++i) {
    runs.push_back(read_run(paths[i]));
    runs.back().name = names[i];
  }
  return runs;
}

}  // namespace shardwise::cli
