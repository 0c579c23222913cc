#include "shardwise/cli/planned_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/cli/saved_machine.h"
#include "shardwise/cli/train_report.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::cli {
namespace {

/// Returns the seconds in which each of the texts that are generated at once gets a token.
std::optional<double> measured_token(const GenerationTimes& times, const infer::Timings& measured) {
  if (measured.generated_tokens == 0 || measured.decode_seconds <= 0) return std::nullopt;
  return measured.decode_seconds * static_cast<double>(times.texts) /
         static_cast<double>(measured.generated_tokens);
}

}  // namespace

std::optional<plan::InferenceTask> inference_task(const ModelSource& model,
                                                  const std::vector<infer::Request>& requests,
                                                  const infer::Batching& batching) {
  const auto count = std::ssize(requests);
  int64_t prompts = 0, tokens = 0;
  for (const infer::Request& request : requests) {
    prompts += std::ssize(request.prompt);
    tokens += request.max_new_tokens;
  }
  const auto& quantization = model.config().quantization;
  const bool rounds_activations = quantization && quantization->int8_activations;
  if (batching.drafted > 0 || rounds_activations || prompts < count || tokens < count) return std::nullopt;
  plan::InferenceTask task{.config = model.config(),
                           .prompt_tokens = plan::parts_of(prompts, count),
                           .new_tokens = plan::parts_of(tokens, count),
                           .texts = std::min<int64_t>(count, batching.sequences),
                           .element_bytes = static_cast<int64_t>(c10::elementSize(model.dtype())),
                           .has_int8_cache = batching.cache_dtype == at::kChar};
  return task;
}

GenerationTimes planned_times(const std::optional<plan::InferenceTask>& task, size_t requests,
                              const config::Stages& stages, const comm::Group& group) {
  GenerationTimes times;
  if (!task || !stages.layers.empty()) return times;
  times.texts = task->texts;
  times.batches = static_cast<double>(requests) / static_cast<double>(task->texts);
  times.new_tokens = task->new_tokens;
  const bool is_planned_for = group.device().is_cpu() && ranks_share_memory(group) &&
                              task->texts <= plan::kMostTokens / (task->prompt_tokens + task->new_tokens);
  const auto machine = is_planned_for ? saved_machine("generate", ranks_of(group)) : std::nullopt;
  if (!machine) return times;
  times.machine = machine->memory_bytes.source;
  plan::InferenceTask of_ranks = *task;
  of_ranks.ranks = group.size();
  times.planned =
      plan::evaluate(of_ranks, {.tp = group.size() / stages.pp, .replicas = 1, .pp = stages.pp}, *machine);
  return times;
}

std::string planned_text(const GenerationTimes& times) {
  if (!times.planned) return "";
  return fmt::format("; planned time: {} for the prompts, {} a token, {} in all",
                     in_seconds(times.prompt_seconds()), in_seconds(times.planned->seconds_per_token()),
                     in_seconds(times.seconds()));
}

std::string compared_text(const GenerationTimes& times, const infer::Timings& measured) {
  if (!times.planned || measured.prefill_seconds <= 0) return "";
  std::string text = "; " + compared("prompts", measured.prefill_seconds, times.prompt_seconds());
  if (const auto token = measured_token(times, measured))
    text += "; " + compared("token", *token, times.planned->seconds_per_token());
  return text;
}

nlohmann::ordered_json to_json(const GenerationTimes& times, const infer::Timings& measured) {
  using Json = nlohmann::ordered_json;
  const auto planned = [&](const auto& value) { return times.planned ? Json(value()) : Json(); };
  const std::optional<double> token = measured_token(times, measured);
  return {{"planned_prompt_seconds", planned([&] { return times.prompt_seconds(); })},
          {"planned_token_seconds", planned([&] { return times.planned->seconds_per_token(); })},
          {"planned_seconds", planned([&] { return times.seconds(); })},
          {"planned_machine", planned([&] { return times.machine; })},
          {"measured_prompt_seconds", measured.prefill_seconds},
          {"measured_token_seconds", token ? Json(*token) : Json()}};
}

}  // namespace shardwise::cli
