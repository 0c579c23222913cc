// `shardwise plan`: ranks the ways to split a training step over the devices of a cluster.
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "shardwise/base/error.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/plan_report.h"
#include "shardwise/config/config.h"

namespace shardwise::cli {
namespace {

using plan::Pins;
using plan::ZeroStage;

/// The most ranks and sequences: far above any cluster in use, and far below what products of sizes overflow
/// at.
constexpr int64_t kMost = int64_t{1} << 24;

struct PlanOptions {
  std::optional<std::string> model, dtype, recompute;
  std::string machine = "h100";
  int64_t ranks = 0;
  std::optional<int64_t> sequence_length, batch_size, zero;
  std::optional<double> memory_cap;
  Pins pins;
  int64_t rows = 10;
  bool why = false, json = false, check = false;
};

void add_flags(Flags& flags, PlanOptions& o) {
  flags.value("--model MODEL", o.model,
              fmt::format("a directory or file with a config.json, or a preset: {}",
                          fmt::join(config::preset_names(), ", ")));
  flags.value("--ranks N", o.ranks, "devices of the cluster, one rank each");
  flags.value("--machine NAME", o.machine, fmt::format("{} [h100]", fmt::join(plan::machine_names(), ", ")));
  flags.value("--seq-len N", o.sequence_length,
              "tokens of a sequence [4096, or what the model has positions for]");
  flags.value("--batch-size N", o.batch_size, "sequences of a step over all ranks [the number of ranks]");
  flags.value("--dtype NAME", o.dtype, "of weights and activations: bfloat16 or float32 [bfloat16]");
  flags.value("--memory-cap GB", o.memory_cap, "memory that a rank may fill [the device's, less a reserve]");
  flags.group("Degrees that the plans must have");
  flags.value("--tp,--tensor-parallel-size N", o.pins.tp, "ranks of tensor parallelism");
  flags.value("--pp,--pipeline-parallel-size N", o.pins.pp, "pipeline stages");
  flags.value("--dp,--data-parallel-size N", o.pins.dp, "ranks of data parallelism");
  flags.value("--micro-batch-size N", o.pins.micro_batch_size,
              "sequences of a micro-batch [every power of two]");
  flags.value(
      "--zero STAGE", o.zero,
      "what data-parallel ranks split: 0 nothing, 1 optimizer states, 2 and gradients, 3 and weights");
  flags.value("--recompute MODE", o.recompute, "none, selective (activations) or full (blocks)");
  flags.group("Output");
  flags.value("--rows N", o.rows, "plans to print [10]");
  flags.on_off("--why", o.why, "explain the first plan against the second");
  flags.on_off("--json", o.json, "print one JSON object with every plan and every refusal");
  flags.on_off("--check", o.check, "compare published figures with what is planned for them, instead");
}

config::Config config_of(const std::string& model) {
  const auto names = config::preset_names();
  if (std::ranges::count(names, model) > 0) return config::preset(model);
  TORCH_CHECK_VALUE(std::filesystem::exists(model),
                    "plan: --model must be a directory or file with a config.json, or one of ",
                    fmt::format("{}", fmt::join(names, ", ")), "; got ", base::shortened(model), " [SW0758]");
  return config::load_config(model);
}

base::Recompute recompute_of(const std::string& mode) {
  check_choice("plan", "--recompute", mode, {"none", "selective", "full"});
  return mode == "none"   ? base::Recompute::none
         : mode == "full" ? base::Recompute::full
                          : base::Recompute::selective;
}

Pins pins_of(const PlanOptions& o) {
  Pins pins = o.pins;
  for (const auto& [flag, pin] : {std::pair{"--tp", pins.tp},
                                  {"--pp", pins.pp},
                                  {"--dp", pins.dp},
                                  {"--micro-batch-size", pins.micro_batch_size}})
    if (pin) check_range("plan", flag, *pin, 1, kMost);
  if (o.zero) {
    check_range("plan", "--zero", *o.zero, 0, 3);
    pins.zero = static_cast<ZeroStage>(*o.zero);
  }
  if (o.recompute) pins.recompute = recompute_of(*o.recompute);
  return pins;
}

plan::TrainingTask task_of(const PlanOptions& o) {
  TORCH_CHECK_VALUE(!o.why || !o.json, "plan: --why explains in words; got it with --json [SW0761]");
  TORCH_CHECK_VALUE(o.model, "plan: --model must name a model; got none [SW0759]");
  check_range("plan", "--ranks", o.ranks, 1, kMost);
  check_range("plan", "--batch-size", o.batch_size.value_or(o.ranks), 1, kMost);
  check_range("plan", "--rows", o.rows, 1, kMost);
  const std::string dtype = o.dtype.value_or("bfloat16");
  check_choice("plan", "--dtype", dtype, {"bfloat16", "float32"});
  plan::TrainingTask task;
  task.config = config_of(*o.model);
  TORCH_CHECK_VALUE(!task.config.quantization,
                    "plan: --model must be unquantized, because training is planned; got ",
                    task.config.quantization ? task.config.quantization->text() : "", " [SW0762]");
  const int64_t positions = task.config.max_position_embeddings;
  task.ranks = o.ranks;
  task.sequence_length = o.sequence_length.value_or(std::min<int64_t>(4096, positions));
  check_range("plan", "--seq-len", task.sequence_length, 1, positions);
  task.batch_size = o.batch_size.value_or(o.ranks);
  task.element_bytes = dtype == "float32" ? 4 : 2;
  return task;
}

std::optional<int64_t> cap_in_bytes(const PlanOptions& o) {
  if (!o.memory_cap) return std::nullopt;
  TORCH_CHECK_VALUE(std::isfinite(*o.memory_cap) && *o.memory_cap > 0 && *o.memory_cap < 1e6,
                    "plan: --memory-cap must be in (0, 1e6) GB; got ", *o.memory_cap, " [SW0760]");
  return static_cast<int64_t>(*o.memory_cap * 1e9);
}

/// Returns 1 if a figure is outside its band.
int check_published_figures(const PlanOptions& o) {
  TORCH_CHECK_VALUE(!o.model && o.ranks == 0, "plan: --check has its own models; got ",
                    o.model ? "--model " + base::shortened(*o.model) : fmt::format("--ranks {}", o.ranks),
                    " [SW0763]");
  const std::vector<plan::PublishedFigure> figures = plan::published_figures();
  print(o.json ? to_json(figures) : to_text(figures));
  return std::ranges::all_of(figures, &plan::PublishedFigure::is_in_band) ? 0 : 1;
}

}  // namespace

int plan_command(const Call& call) {
  PlanOptions options;
  Flags flags(
      "plan",
      "Ranks the ways to split a training step over a cluster: memory by class, time by part, and why others "
      "are refused. Arithmetic only; runs nothing.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  if (options.check) return check_published_figures(options);
  const Pins pins = pins_of(options);
  const plan::TrainingTask task = task_of(options);
  const plan::Machine machine = plan::built_in_machine(options.machine);
  const std::optional<int64_t> cap = cap_in_bytes(options);
  const PlanReport report{*options.model, task, machine, plan::search(task, machine, pins, cap)};
  print(options.json ? to_json(report) : to_text(report, options.rows) + (options.why ? why(report) : ""));
  return report.found.plans.empty() ? 1 : 0;
}

}  // namespace shardwise::cli
