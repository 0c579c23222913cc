// The flags of `shardwise plan`, and what they describe.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/plan/inference_plan.h"
#include "shardwise/plan/search.h"

namespace shardwise::cli {

struct PlanOptions {
  std::optional<std::string> model, dtype, largest, algorithm;
  std::string task = "train", machine = "h100";
  int64_t ranks = 0;
  std::optional<int64_t> batch_size;
  std::optional<double> memory_cap;
  // Of training.
  std::optional<int64_t> sequence_length, zero;
  std::optional<std::string> recompute, gradient_dtype, overlap;
  std::vector<std::string> freeze;
  plan::Pins pins;  // tp, pp and ep are of inference too
  // Of inference.
  std::optional<int64_t> prompt_tokens, new_tokens, group_size;
  std::optional<std::string> quantize, head, cache_dtype;
  // Of runs to learn from.
  std::vector<std::string> learn;
  std::optional<std::string> out;
  // Output.
  std::optional<std::string> html;
  int64_t rows = 10;
  bool why = false, json = false, check = false, matrix = false, shapes = false, min_gpus = false;

  bool plans_inference() const { return task == "infer"; }
};

void add_flags(Flags& flags, PlanOptions& options);

/// Checks what is needed of both tasks, and that every flag is one of the task. Errors: c10::ValueError
/// naming the flag and its rule, as all below.
void validate(const PlanOptions& options);

/// Checks that none of the flags is given that --check and --matrix have their own values for.
void check_has_no_model(const PlanOptions& options);

/// Returns the workload whose tensors --shapes lists.
plan::Workload shapes_workload(const PlanOptions& options);
plan::TrainingTask training_task(const PlanOptions& options);
plan::InferenceTask inference_task(const PlanOptions& options);
plan::Pins pins_of(const PlanOptions& options);
plan::Machine machine_of(const PlanOptions& options);
/// Returns the bytes of --memory-cap; nullopt if it is not given. Errors: c10::ValueError beginning with
/// `command` if it is not positive.
std::optional<int64_t> memory_cap_in_bytes(const std::string& command,
                                           const std::optional<double>& gigabytes);

}  // namespace shardwise::cli
