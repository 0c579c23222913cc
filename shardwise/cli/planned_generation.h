// The time of a generation: planned before it starts, for the machine that `shardwise bench machine --save`
// measured, and measured.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/model_source.h"
#include "shardwise/config/stages.h"
#include "shardwise/infer/generate.h"
#include "shardwise/plan/inference_plan.h"

namespace shardwise::cli {

/// Returns the task that the requests are for plan/: as many texts as are generated at once, of the mean
/// length. No value for what plan/ does not have the time of: drafted tokens, activations in int8, and
/// requests without a token.
std::optional<plan::InferenceTask> inference_task(const ModelSource& model,
                                                  const std::vector<infer::Request>& requests,
                                                  const infer::Batching& batching);

/// The times of a generation.
struct GenerationTimes {
  std::string machine = {};                         // where the planned times' figures are from
  std::optional<plan::InferencePlan> planned = {};  // no value without a measured machine
  int64_t texts = 1;                                // that are generated at once
  double batches = 1;                               // of as many texts, in all requests
  int64_t new_tokens = 0;                           // of a text, at most

  /// Return planned seconds: of all prompts, and of everything if every text gets all its tokens. There must
  /// be a plan.
  double prompt_seconds() const { return batches * planned->prompts.total(); }
  double seconds() const { return batches * planned->seconds(new_tokens); }
};

/// Returns the planned times of `task`, which may have none, on the ranks of `group`, which are those of all
/// stages. There are none for stages of given numbers of layers.
GenerationTimes planned_times(const std::optional<plan::InferenceTask>& task, size_t requests,
                              const config::Stages& stages, const comm::Group& group);

/// Returns "; planned time: 12.30 ms for the prompts, 3.10 ms a token, 409.10 ms in all", or "" without a
/// plan.
std::string planned_text(const GenerationTimes& times);
/// Returns "; prompts: … measured, … planned (…); token: …", or "" without a plan.
std::string compared_text(const GenerationTimes& times, const infer::Timings& measured);
/// Returns the fields planned_prompt_seconds, planned_token_seconds, planned_seconds, planned_machine,
/// measured_prompt_seconds and measured_token_seconds, each null if there is none.
nlohmann::ordered_json to_json(const GenerationTimes& times, const infer::Timings& measured);

}  // namespace shardwise::cli
