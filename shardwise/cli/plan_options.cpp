#include "shardwise/cli/plan_options.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <cmath>

#include "shardwise/base/error.h"
#include "shardwise/cli/cache_dtype.h"
#include "shardwise/cli/model_input.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/config/freeze.h"

namespace shardwise::cli {

using plan::Pins;
using plan::ZeroStage;

namespace {

/// The most ranks and sequences: far above any cluster in use, and far below what products of sizes overflow
/// at.
constexpr int64_t kMost = int64_t{1} << 24;

base::Recompute recompute_of(const std::string& mode) {
  check_choice("plan", "--recompute", mode, {"none", "selective", "full"});
  return mode == "none"   ? base::Recompute::none
         : mode == "full" ? base::Recompute::full
                          : base::Recompute::selective;
}

int64_t bytes_of_dtype(const char* flag, const std::string& dtype) {
  check_choice("plan", flag, dtype, {"bfloat16", "float32"});
  return dtype == "float32" ? 4 : 2;
}

int64_t element_bytes_of(const PlanOptions& o) {
  return bytes_of_dtype("--dtype", o.dtype.value_or("bfloat16"));
}

/// Errors: c10::ValueError if 16-bit gradients are wanted for weights that are wider.
int64_t gradient_bytes_of(const PlanOptions& o) {
  const int64_t bytes = bytes_of_dtype("--gradient-dtype", o.gradient_dtype.value_or("float32"));
  TORCH_CHECK_VALUE(bytes >= element_bytes_of(o),
                    "plan: --gradient-dtype must be no narrower than --dtype; got ", *o.gradient_dtype,
                    " and ", o.dtype.value_or(""), " [SW0780]");
  return bytes;
}

bool overlaps(const PlanOptions& o) {
  const std::string overlap = o.overlap.value_or("on");
  check_choice("plan", "--overlap", overlap, {"on", "off"});
  return overlap == "on";
}

/// A flag that not every kind of output has, and whether it is given.
struct OptionalFlag {
  enum class Of { training, inference, both };
  const char* name;
  Of of;  // the tasks that it belongs to
  bool matters_to_shapes, matters_to_largest;
  bool is_given;
};

std::vector<OptionalFlag> optional_flags(const PlanOptions& o) {
  using enum OptionalFlag::Of;
  const bool grows_sequence = o.largest == "seq";
  return {{"--seq-len", training, true, !grows_sequence, o.sequence_length.has_value()},
          {"--dp", training, false, false, o.pins.dp.has_value()},
          {"--cp", training, false, false, o.pins.cp.has_value()},
          {"--micro-batch-size", training, false, false, o.pins.micro_batch_size.has_value()},
          {"--zero", training, false, true, o.zero.has_value()},
          {"--recompute", training, false, true, o.recompute.has_value()},
          {"--gradient-dtype", training, false, true, o.gradient_dtype.has_value()},
          {"--overlap", training, false, false, o.overlap.has_value()},
          {"--split-batch", training, false, false, o.pins.split_batch},
          {"--freeze", training, false, true, !o.freeze.empty()},
          {"--why", training, false, false, o.why},
          {"--prompt-tokens", inference, true, true, o.prompt_tokens.has_value()},
          {"--new-tokens", inference, false, true, o.new_tokens.has_value()},
          {"--quantize", inference, false, true, o.quantize.has_value()},
          {"--group-size", inference, false, true, o.group_size.has_value()},
          {"--head", inference, false, true, o.head.has_value()},
          {"--kv-cache-dtype", inference, false, true, o.cache_dtype.has_value()},
          {"--batch-size", both, true, false, o.batch_size.has_value()},
          {"--tp", both, true, true, o.pins.tp.has_value()},
          {"--pp", both, false, false, o.pins.pp.has_value()},
          {"--ep", both, false, false, o.pins.ep.has_value()},
          {"--ranks", both, false, true, o.ranks != 0},
          {"--min-gpus", both, false, false, o.min_gpus},
          {"--shapes", both, true, false, o.shapes},
          {"--dtype", both, true, true, o.dtype.has_value()},
          {"--algorithm", both, false, false, o.algorithm.has_value()},
          {"--memory-cap", both, false, true, o.memory_cap.has_value()}};
}

/// Errors: c10::ValueError if a flag is given that does not matter to the task, or to --shapes.
void check_optional_flags(const PlanOptions& o) {
  const auto other = o.plans_inference() ? OptionalFlag::Of::training : OptionalFlag::Of::inference;
  TORCH_CHECK_VALUE(!o.shapes || o.pins.tp, "plan: --shapes needs --tp; got none [SW0777]");
  for (const OptionalFlag& flag : optional_flags(o)) {
    TORCH_CHECK_VALUE(!flag.is_given || flag.of != other, "plan: ", flag.name, " must go with --task ",
                      o.plans_inference() ? "train" : "infer", "; got --task ", o.task, " [SW0773]");
    TORCH_CHECK_VALUE(!flag.is_given || !o.shapes || flag.matters_to_shapes,
                      "plan: --shapes must go without flags that change neither shapes nor bytes; got ",
                      flag.name, " [SW0778]");
    TORCH_CHECK_VALUE(!flag.is_given || !o.largest || flag.matters_to_largest,
                      "plan: --largest must go without flags that it chooses; got ", flag.name, " [SW0814]");
  }
}

/// Errors: c10::ValueError unless --largest names something that grows in the task.
void check_largest(const PlanOptions& o) {
  const bool is_known = o.plans_inference() ? o.largest == "kv" : o.largest == "batch" || o.largest == "seq";
  TORCH_CHECK_VALUE(is_known,
                    "plan: --largest must be batch or seq with --task train, kv with --task infer; got ",
                    base::shortened(*o.largest), " with --task ", o.task, " [SW0815]");
}

}  // namespace

void add_flags(Flags& flags, PlanOptions& o) {
  flags.value("--model MODEL", o.model,
              fmt::format("a directory or file with a config.json, or a preset: {}",
                          fmt::join(config::preset_names_to_plan(), ", ")));
  flags.value("--task NAME", o.task, "train or infer [train]");
  flags.value("--ranks N", o.ranks, "devices of the cluster, one rank each");
  flags.on_off("--min-gpus", o.min_gpus,
               "plan for the fewest devices, doubled from one, on which a plan fits, instead of --ranks");
  flags.value(
      "--machine NAME", o.machine,
      fmt::format("{}, or a file of shardwise bench machine [h100]", fmt::join(plan::machine_names(), ", ")));
  flags.value(
      "--batch-size N", o.batch_size,
      "sequences of a step over all ranks [the number of ranks], or texts that are generated at once [1]");
  flags.value("--dtype NAME", o.dtype, "of weights and activations: bfloat16 or float32 [bfloat16]");
  flags.value("--algorithm NAME", o.algorithm,
              "of collectives that were not measured: ring, two-shot or tree [the machine's: ring]");
  flags.value("--memory-cap GB", o.memory_cap, "memory that a rank may fill [the device's, less a reserve]");
  flags.value("--tp,--tensor-parallel-size N", o.pins.tp, "ranks of tensor parallelism [every number]");
  flags.value("--pp,--pipeline-parallel-size N", o.pins.pp, "pipeline stages [every number]");
  flags.value(
      "--ep,--expert-parallel-size N", o.pins.ep,
      "ranks that share the experts of a block: of tp, cp and dp, or of tp and replicas [every number]");
  flags.group("Inference");
  flags.value("--prompt-tokens N", o.prompt_tokens, "tokens of a prompt [512]");
  flags.value("--new-tokens N", o.new_tokens, "tokens to generate of each text [128]");
  flags.value("--quantize NAME", o.quantize, "weights in int8 or int4 [as in the model]");
  flags.value("--group-size N", o.group_size,
              "input features per scale: 32, 64 or 128 [int4: 128; int8: a scale per row]");
  flags.value("--head NAME", o.head, "of quantized weights, embedding and head: int8, int4 or none [int8]");
  flags.value("--kv-cache-dtype NAME", o.cache_dtype, kCacheDtypeHelp);
  flags.group("Training; degrees that the plans must have");
  flags.value("--seq-len N", o.sequence_length,
              "tokens of a sequence [4096, or what the model has positions for]");
  flags.value("--dp,--data-parallel-size N", o.pins.dp, "ranks of data parallelism");
  flags.value("--cp,--context-parallel-size N", o.pins.cp, "ranks that split each sequence");
  flags.value("--micro-batch-size N", o.pins.micro_batch_size,
              "sequences of a micro-batch [every power of two]");
  flags.value(
      "--zero STAGE", o.zero,
      "what data-parallel ranks split: 0 nothing, 1 optimizer states, 2 and gradients, 3 and weights");
  flags.value("--recompute MODE", o.recompute, "none, selective (activations) or full (blocks)");
  flags.value(
      "--gradient-dtype NAME", o.gradient_dtype,
      "of main gradients: float32 (18 bytes a parameter in bf16), or bfloat16 (2 + 2 + 12) [float32]");
  flags.value("--overlap on|off", o.overlap,
              "run tensor parallelism's collectives beside products, where ranks do not share memory [on]");
  flags.on_off("--split-batch", o.pins.split_batch,
               "compute one half of each micro-batch beside the collectives of the other, without sequence "
               "parallelism (Domino)");
  flags.values("--freeze GLOB", o.freeze,
               "do not train tensors whose Hugging Face names match, such as 'model.layers.0.*'");
  flags.group("Output");
  flags.value("--rows N", o.rows, "plans to print [10]");
  flags.on_off("--why", o.why, "explain the first plan against the second");
  flags.on_off("--json", o.json, "print one JSON object with every plan and every refusal");
  flags.on_off(
      "--shapes", o.shapes,
      "print instead the tensors of a block, the indices that each rank of --tp holds, and what it sends");
  flags.value(
      "--largest NAME", o.largest,
      "print instead, for each number of ranks of tensor parallelism, the largest that fits: batch (the "
      "sequences of a micro-batch), seq (its tokens), or with --task infer kv (cached texts)");
  flags.on_off("--matrix", o.matrix, "compare typical runs' fastest plans with what is advised, instead");
  flags.values("--learn RUN", o.learn,
               "correct --machine FILE by files that train --report wrote, of runs on it whose time was "
               "planned, instead: one factor for compute, one for communication");
  flags.value("--out,-o FILE", o.out, "with --learn: write the corrected machine here");
  flags.value("--html FILE", o.html, "write instead a page on which every flag is a control");
  flags.on_off("--check", o.check, "compare published figures with what is planned for them, instead");
}

void check_has_no_model(const PlanOptions& o) {
  const char* what = o.check ? "--check" : "--matrix";
  const auto refuse = [&](bool is_given, const std::string& flag) {
    TORCH_CHECK_VALUE(!is_given, "plan: ", what, " has its own models; got ", flag, " [SW0763]");
  };
  refuse(o.check && o.matrix, "--matrix");
  refuse(o.model.has_value(), "--model " + base::shortened(o.model.value_or("")));
  refuse(o.plans_inference(), "--task infer");
  refuse(o.machine != PlanOptions{}.machine, "--machine " + base::shortened(o.machine));
  refuse(o.largest.has_value(), "--largest");
  for (const OptionalFlag& flag : optional_flags(o)) refuse(flag.is_given, flag.name);
}

void validate(const PlanOptions& o) {
  check_choice("plan", "--task", o.task, {"train", "infer"});
  TORCH_CHECK_VALUE(!o.why || !o.json, "plan: --why explains in words; got it with --json [SW0761]");
  TORCH_CHECK_VALUE(o.model, "plan: --model must name a model; got none [SW0759]");
  if (o.largest) check_largest(o);
  check_optional_flags(o);
  TORCH_CHECK_VALUE(!o.min_gpus || o.ranks == 0, "plan: --min-gpus must go without --ranks; got --ranks ",
                    o.ranks, " [SW0776]");
  if (!o.shapes && !o.min_gpus) check_range("plan", "--ranks", o.ranks, 1, kMost);
  check_range("plan", "--batch-size", o.batch_size.value_or(1), 1, kMost);
  check_range("plan", "--rows", o.rows, 1, kMost);
}

plan::Workload shapes_workload(const PlanOptions& o) {
  plan::Workload workload;
  workload.config = model_config_of("plan", *o.model);
  check_range("plan", "--tp", *o.pins.tp, 1, workload.config.num_attention_heads);
  workload.tp = static_cast<int>(*o.pins.tp);
  workload.parallelism = o.plans_inference() ? plan::Parallelism::tp : plan::Parallelism::tp_sp;
  const int64_t positions = workload.config.max_position_embeddings;
  const std::optional<int64_t> tokens = o.plans_inference() ? o.prompt_tokens : o.sequence_length;
  workload.sequence_length = tokens.value_or(std::min<int64_t>(4096, positions));
  check_range("plan", o.plans_inference() ? "--prompt-tokens" : "--seq-len", workload.sequence_length, 1,
              positions);
  workload.batch_size = o.batch_size.value_or(1);
  workload.element_bytes = element_bytes_of(o);
  return workload;
}

plan::TrainingTask training_task(const PlanOptions& o) {
  plan::TrainingTask task;
  task.config = model_config_to_plan("plan", *o.model);
  TORCH_CHECK_VALUE(!task.config.quantization,
                    "plan: --model must be unquantized, because training is planned; got ",
                    task.config.quantization ? task.config.quantization->text() : "", " [SW0762]");
  const int64_t positions = task.config.max_position_embeddings;
  task.ranks = o.ranks;
  task.sequence_length = o.sequence_length.value_or(std::min<int64_t>(4096, positions));
  check_range("plan", "--seq-len", task.sequence_length, 1, positions);
  task.batch_size = o.batch_size.value_or(o.ranks);
  task.element_bytes = element_bytes_of(o);
  task.gradient_bytes = gradient_bytes_of(o);
  task.overlaps_collectives = overlaps(o);
  task.frozen = {task.config, config::frozen_by("plan", o.freeze, task.config).parameters};
  return task;
}

plan::InferenceTask inference_task(const PlanOptions& o) {
  plan::InferenceTask task;
  task.config = model_config_to_plan("plan", *o.model);
  TORCH_CHECK_VALUE(!o.quantize || !task.config.quantization,
                    "plan: --quantize needs a model that is not quantized; got ",
                    task.config.quantization ? task.config.quantization->text() : "", " [SW0774]");
  TORCH_CHECK_VALUE(o.quantize || (!o.group_size && !o.head),
                    "plan: --group-size and --head need --quantize; got none [SW0775]");
  if (o.quantize)
    task.config.quantization =
        quantization_on_load("plan", *o.quantize, o.group_size, o.head.value_or("int8"), task.config);
  const int64_t positions = task.config.max_position_embeddings;
  task.ranks = o.ranks;
  task.prompt_tokens = o.prompt_tokens.value_or(std::min<int64_t>(512, positions - 1));
  check_range("plan", "--prompt-tokens", task.prompt_tokens, 1, positions - 1);
  task.new_tokens = o.new_tokens.value_or(std::min<int64_t>(128, positions - task.prompt_tokens));
  check_range("plan", "--new-tokens", task.new_tokens, 1, positions - task.prompt_tokens);
  task.texts = o.batch_size.value_or(1);
  task.element_bytes = element_bytes_of(o);
  task.has_int8_cache =
      cache_dtype_of("plan", "--kv-cache-dtype", o.cache_dtype.value_or("auto")).has_value();
  return task;
}

Pins pins_of(const PlanOptions& o) {
  Pins pins = o.pins;
  for (const auto& [flag, pin] : {std::pair{"--tp", pins.tp},
                                  {"--pp", pins.pp},
                                  {"--dp", pins.dp},
                                  {"--cp", pins.cp},
                                  {"--ep", pins.ep},
                                  {"--micro-batch-size", pins.micro_batch_size}})
    if (pin) check_range("plan", flag, *pin, 1, kMost);
  if (o.zero) {
    check_range("plan", "--zero", *o.zero, 0, 3);
    pins.zero = static_cast<ZeroStage>(*o.zero);
  }
  if (o.recompute) pins.recompute = recompute_of(*o.recompute);
  return pins;
}

plan::Machine machine_of(const PlanOptions& o) {
  plan::Machine machine = machine_of("plan", o.machine);
  check_devices("plan", machine, o.ranks);
  if (o.algorithm) machine.algorithm = plan::algorithm_of(*o.algorithm);
  return machine;
}

std::optional<int64_t> memory_cap_in_bytes(const std::string& command,
                                           const std::optional<double>& gigabytes) {
  if (!gigabytes) return std::nullopt;
  TORCH_CHECK_VALUE(std::isfinite(*gigabytes) && *gigabytes > 0 && *gigabytes < 1e6, command,
                    ": --memory-cap must be in (0, 1e6) GB; got ", *gigabytes, " [SW0760]");
  return static_cast<int64_t>(*gigabytes * 1e9);
}

}  // namespace shardwise::cli
