// `shardwise profile step`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/bench/step_profile.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/model_input.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_ranks.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kProfileStep = "profile step";
constexpr int64_t kMostStepTokens = 1 << 24;

struct StepProfileOptions {
  ProfileRanks ranks{"1,2"};
  std::string model = "small", dtype = "bf16";
  int64_t seq_len = 256, batch_size = 4;
  bool sequence_parallel = true, json = false;

  double tokens() const { return static_cast<double>(seq_len * batch_size); }
};

void add_flags(Flags& flags, StepProfileOptions& o) {
  flags.value("--model MODEL", o.model,
              fmt::format("a preset, or a directory or file with a config.json [{}]", o.model));
  flags.value("--seq-len N", o.seq_len, fmt::format("tokens of a sequence [{}]", o.seq_len));
  flags.value("--batch-size N", o.batch_size, fmt::format("sequences [{}]", o.batch_size));
  flags.value("--dtype NAME", o.dtype, fmt::format("fp32 or bf16 [{}]", o.dtype));
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "shard activations between the layers along the sequence [on]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
  add_ranks_flags(flags, o.ranks);
}

config::Config checked_config(const StepProfileOptions& o) {
  config::Config config = model_config_of(kProfileStep, o.model);
  check_unquantized(kProfileStep, config);
  check_range(kProfileStep, "--seq-len", o.seq_len, 1, config.max_position_embeddings);
  check_range(kProfileStep, "--batch-size", o.batch_size, 1,
              std::max<int64_t>(kMostStepTokens / o.seq_len, 1));
  check_choice(kProfileStep, "--dtype", o.dtype, {"fp32", "bf16"});
  return config;
}

/// A step on one number of ranks. Milliseconds; by model there is neither waiting nor other time.
struct StepRow {
  int64_t ranks;
  double step_ms;
  bench::StepParts parts;
  int64_t weight_bytes;
  std::optional<bench::StepProfile> measured = {};
  int64_t nodes = 1;
};

StepRow row_of(const bench::StepProfile& p) {
  return {p.ranks, p.step.raw.median_us / 1e3, p.parts, p.weight_bytes, p};
}

StepRow row_of(const StepProfileOptions& o, const config::Config& config, int64_t ranks,
               const plan::Machine& machine) {
  const int64_t element_bytes = o.dtype == "fp32" ? 4 : 2;
  plan::TrainingPlanner planner({config, ranks, o.seq_len, o.batch_size, element_bytes}, machine);
  const plan::TrainingPlan plan = planner.evaluate(
      {.tp = ranks, .has_sequence_parallel = o.sequence_parallel, .micro_batch_size = o.batch_size});
  const bench::StepParts parts{.compute = plan.time.compute * 1e3,
                               .communication = plan.time.tensor_parallel * 1e3,
                               .optimizer = plan.time.optimizer * 1e3};
  const int64_t in_node = plan::RankGroup{.ranks = ranks}.ranks_in_node(machine);
  return {ranks,        plan.time.total() * 1e3,        parts, plan.memory.weights,
          std::nullopt, (ranks + in_node - 1) / in_node};
}

std::string in_ms(double ms, double whole) {
  return fmt::format("{:.3f} ({:.0f} %)", ms, 100 * ms / whole);
}

/// The cells after the number of ranks; those of waiting and other time if the rows are measured.
Row cells_of(const StepProfileOptions& o, const StepRow& row, const StepRow& first) {
  const bench::StepParts& p = row.parts;
  const double whole = p.total();
  Row cells{fmt::format("{:.3f}", row.step_ms)};
  if (row.measured) {
    const bench::Spread& raw = row.measured->step.raw;
    cells.push_back(fmt::format("{:.3f}-{:.3f}", raw.lower_quartile_us / 1e3, raw.upper_quartile_us / 1e3));
  }
  cells.push_back(in_ms(p.compute, whole));
  cells.push_back(in_ms(p.communication, whole));
  if (row.measured) cells.push_back(in_ms(p.waiting, whole));
  cells.push_back(in_ms(p.optimizer, whole));
  if (row.measured) cells.push_back(in_ms(p.other, whole));
  cells.push_back(fmt::format("{:.0f}", o.tokens() / row.step_ms * 1e3));
  cells.push_back(fmt::format("{:.2f}x", first.step_ms / row.step_ms));
  cells.push_back(fmt::format("{:.2f}", megabytes(row.weight_bytes)));
  return cells;
}

std::string subject_of(const StepProfileOptions& o) {
  return fmt::format("{}, {} x {} tokens, {}{}", o.model, o.batch_size, o.seq_len, o.dtype,
                     o.sequence_parallel ? ", sequence parallelism" : "");
}

std::string modeled_text(const StepProfileOptions& o, const std::vector<StepRow>& steps,
                         const std::string& machine) {
  std::vector<Row> rows{{"ranks", "nodes", "step ms", "compute ms", "communication ms", "optimizer ms",
                         "tokens/s", "speed-up", "weights MB per rank"}};
  for (const StepRow& step : steps) {
    Row cells = cells_of(o, step, steps.front());
    cells.insert(cells.begin(), {std::to_string(step.ranks), std::to_string(step.nodes)});
    rows.push_back(cells);
  }
  return fmt::format("{}, {}: {}, {}\n", kProfileStep, kByModel, machine, subject_of(o)) + table(rows);
}

std::string measured_text(const StepProfileOptions& o, const std::vector<StepRow>& steps) {
  std::vector<Row> rows{{"ranks", "step ms", "quartiles", "compute ms", "communication ms", "waiting ms",
                         "optimizer ms", "other ms", "tokens/s", "speed-up", "weights MB per rank"}};
  const bool is_any_oversubscribed =
      std::ranges::any_of(steps, [](const StepRow& step) { return step.measured->is_oversubscribed; });
  if (is_any_oversubscribed) rows[0].emplace_back("cores");
  for (const StepRow& step : steps) {
    Row cells = cells_of(o, step, steps.front());
    cells.insert(cells.begin(), std::to_string(step.ranks));
    if (is_any_oversubscribed)
      cells.emplace_back(step.measured->is_oversubscribed ? "oversubscribed" : "own");
    rows.push_back(cells);
  }
  return fmt::format("{}: {}, {}; the median step of the slowest rank, and the parts of recorded steps\n",
                     kProfileStep, subject_of(o), base::cpu_name()) +
         table(rows);
}

ordered_json to_json(const StepProfileOptions& o, const StepRow& row, const StepRow& first) {
  const bench::StepParts& p = row.parts;
  ordered_json json{
      {"ranks", row.ranks},
      {"step_ms", row.step_ms},
      {"tokens_per_second", o.tokens() / row.step_ms * 1e3},
      {"speed_up", first.step_ms / row.step_ms},
      {"weight_bytes", row.weight_bytes},
      {"parts_ms", {{"compute", p.compute}, {"communication", p.communication}, {"optimizer", p.optimizer}}}};
  if (!row.measured) {
    json["nodes"] = row.nodes;
    return json;
  }
  json["parts_ms"]["waiting"] = p.waiting;
  json["parts_ms"]["other"] = p.other;
  json["oversubscribed"] = row.measured->is_oversubscribed;
  json["repetitions"] = row.measured->step.repetitions;
  json["step"] = bench::to_json(row.measured->step.raw);
  return json;
}

std::string to_json(const StepProfileOptions& o, const std::vector<StepRow>& steps,
                    const std::optional<std::string>& machine) {
  ordered_json json{{"command", kProfileStep}, {"measured", !machine}};
  if (machine) {
    json["machine"] = *machine;
    json["note"] = kByModel;
  } else {
    json["cpu"] = base::cpu_name();
  }
  json["model"] = o.model;
  json["dtype"] = o.dtype;
  json["seq_len"] = o.seq_len;
  json["batch_size"] = o.batch_size;
  json["sequence_parallel"] = o.sequence_parallel;
  json["rows"] = ordered_json::array();
  for (const StepRow& step : steps) json["rows"].push_back(to_json(o, step, steps.front()));
  return json_line(json);
}

int print_modeled_steps(const StepProfileOptions& o, const config::Config& config,
                        const std::vector<int64_t>& ranks, const plan::Machine& machine) {
  std::vector<StepRow> rows;
  for (const int64_t count : ranks) rows.push_back(row_of(o, config, count, machine));
  print(o.json ? to_json(o, rows, machine.name) : modeled_text(o, rows, machine.name));
  return 0;
}

int measure_steps(const Call& call, const StepProfileOptions& o, const config::Config& config,
                  const std::vector<int64_t>& ranks) {
  const bench::StepBench bench{config,
                               o.dtype == "fp32" ? at::kFloat : at::kBFloat16,
                               {o.seq_len, o.batch_size, o.sequence_parallel},
                               o.ranks.seconds_each()};
  const auto body = [&](const std::vector<bench::RankTeam>& teams, const comm::Group& world) {
    std::vector<StepRow> rows;
    {
      ProgressLine line;
      const auto on_progress = [&](int64_t done, int64_t repetitions) {
        line.show(fmt::format("{}: repetition {} of {}", kProfileStep, done, repetitions));
      };
      for (const bench::StepProfile& profile : bench::profile_steps(bench, teams, world, on_progress))
        rows.push_back(row_of(profile));
    }
    if (world.rank() == 0) print(o.json ? to_json(o, rows, std::nullopt) : measured_text(o, rows));
  };
  return run_on_teams(call, o.ranks, ranks, body);
}

}  // namespace

int profile_step_command(const Call& call) {
  StepProfileOptions o;
  Flags flags(
      kProfileStep,
      "Splits a training step with random weights into computation, communication, waiting and optimizer, "
      "over numbers of ranks.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  const config::Config config = checked_config(o);
  const std::optional<plan::Machine> machine = machine_of(kProfileStep, o.ranks);
  const std::vector<int64_t> ranks = ranks_of(kProfileStep, o.ranks, config.num_attention_heads, machine);
  check_range(kProfileStep, "--ranks", ranks.back(), 1, config.num_attention_heads);
  return machine ? print_modeled_steps(o, config, ranks, *machine) : measure_steps(call, o, config, ranks);
}

}  // namespace shardwise::cli
