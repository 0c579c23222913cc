// `shardwise profile step`: flags, and the run on ranks or on a described machine.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/cli/flags.h"
#include "shardwise/cli/model_input.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_step.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/communication.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostStepTokens = 1 << 24;

void add_flags(Flags& flags, StepProfileOptions& o) {
  flags.value("--model MODEL", o.model,
              fmt::format("a preset, or a directory or file with a config.json [{}]", o.model));
  flags.value("--seq-len N", o.seq_len, fmt::format("tokens of a sequence [{}]", o.seq_len));
  flags.value("--batch-size N", o.batch_size, fmt::format("sequences [{}]", o.batch_size));
  flags.value("--dtype NAME", o.dtype, fmt::format("fp32 or bf16 [{}]", o.dtype));
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "shard activations between the layers along the sequence [on]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
  add_largest_flags(flags, o.largest);
  add_ranks_flags(flags, o.ranks);
  add_host_flags(flags, o.ranks.hosts);
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

plan::TrainingTask task_of(const StepProfileOptions& o, const config::Config& config, int64_t ranks) {
  return {config, ranks, o.seq_len, o.batch_size, o.element_bytes()};
}

/// Returns the collectives of a step over MPI, where gathered rows are copied.
plan::Collectives collectives_of(const StepProfileOptions& o, const config::Config& config, int64_t ranks) {
  plan::Workload workload;
  workload.config = config;
  workload.tp = static_cast<int>(ranks);
  workload.parallelism = o.sequence_parallel ? plan::Parallelism::tp_sp : plan::Parallelism::tp;
  workload.sequence_length = o.seq_len;
  workload.batch_size = o.batch_size;
  workload.element_bytes = o.element_bytes();
  workload.column_input_storage = plan::ColumnInputStorage::shard;
  return plan::micro_batch_communication(workload, /*rank=*/0).both() +
         plan::optimizer_communication(workload, /*rank=*/0);
}

StepRow row_of(const StepProfileOptions& o, const config::Config& config, const bench::StepProfile& p,
               const std::optional<HostNetwork>& network) {
  StepRow row{p.ranks, p.step.raw.median_us / 1e3, p.parts, p.weight_bytes, p};
  if (!network) return row;
  row.nodes = network->hosts_of(p.ranks);
  if (row.nodes == 1) return row;
  const auto seconds =
      network_seconds(*network, p.ranks, collectives_of(o, config, p.ranks), o.element_bytes());
  if (seconds) row.model_ms = p.parts.compute + p.parts.optimizer + p.parts.other + *seconds * 1e3;
  return row;
}

StepRow row_of(const StepProfileOptions& o, const config::Config& config, int64_t ranks,
               const plan::Machine& machine) {
  plan::TrainingPlanner planner(task_of(o, config, ranks), machine);
  const plan::TrainingPlan plan = planner.evaluate(
      {.tp = ranks, .has_sequence_parallel = o.sequence_parallel, .micro_batch_size = o.batch_size});
  const bench::StepParts parts{.compute = plan.time.compute * 1e3,
                               .communication = plan.time.tensor_parallel * 1e3,
                               .optimizer = plan.time.optimizer * 1e3};
  const int64_t in_node = plan::RankGroup{.ranks = ranks}.ranks_in_node(machine);
  return {ranks,        plan.time.total() * 1e3,        parts, plan.memory.weights,
          std::nullopt, (ranks + in_node - 1) / in_node};
}

void print_table(const StepTable& t) {
  print(t.options.json ? to_json(t) : to_text(t));
}

int print_modeled_steps(StepTable table, const config::Config& config, const std::vector<int64_t>& ranks,
                        const plan::Machine& machine) {
  for (const int64_t count : ranks) table.rows.push_back(row_of(table.options, config, count, machine));
  print_table(table);
  return 0;
}

int measure_steps(const Call& call, StepTable table, const config::Config& config,
                  const std::vector<int64_t>& ranks) {
  const StepProfileOptions& o = table.options;
  const bench::StepBench bench{config,
                               o.dtype == "fp32" ? at::kFloat : at::kBFloat16,
                               {o.seq_len, o.batch_size, o.sequence_parallel},
                               o.ranks.seconds_each()};
  const auto body = [&](const std::vector<bench::RankTeam>& teams, const comm::Group& world) {
    {
      ProgressLine line;
      const auto on_progress = [&](int64_t done, int64_t repetitions) {
        line.show(fmt::format("{}: repetition {} of {}", kProfileStep, done, repetitions));
      };
      for (const bench::StepProfile& profile : bench::profile_steps(bench, teams, world, on_progress))
        table.rows.push_back(row_of(o, config, profile, table.network));
    }
    if (world.rank() == 0) print_table(table);
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
  const StepTable table{o, machine ? std::optional(machine->name) : std::nullopt,
                        network_of(kProfileStep, o.ranks.hosts, ranks),
                        largest_batches(kProfileStep, o.largest, task_of(o, config, ranks.back()),
                                        o.sequence_parallel, ranks, machine)};
  return machine ? print_modeled_steps(table, config, ranks, *machine)
                 : measure_steps(call, table, config, ranks);
}

}  // namespace shardwise::cli
