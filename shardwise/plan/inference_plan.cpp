#include "shardwise/plan/inference_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "shardwise/plan/inference_time.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

ForwardTime operator*(double times, const ForwardTime& one) {
  return {times * one.compute, times * one.tensor_parallel, times * one.expert_parallel,
          times * one.pipeline};
}

/// One replica.
class Replica {
 public:
  Replica(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine)
      : task_(task),
        degrees_(degrees),
        texts_(parts_of(task.texts, degrees.replicas)),
        weights_(task.config, {degrees.tp, degrees.ep}, task.element_bytes),
        time_(task, degrees, weights_, machine) {}

  /// Memory of a rank of a stage.
  InferenceMemory memory(const base::Range& blocks) const {
    const int64_t of_token =
        blocks.size() *
        cached_bytes_per_block(task_.config, kv_heads(), task_.element_bytes, task_.has_int8_cache);
    return {.weights = weights_.of_stage(blocks),
            .cache = texts_ * (task_.prompt_tokens + task_.new_tokens) * of_token,
            .buffers = buffers(blocks)};
  }

  /// All prompts, in forwards of kPromptRows tokens, which need not be of one text. These are the
  /// micro-batches of the pipeline: the slowest stage is never idle, and the first one passes the others.
  ForwardTime prompts() const {
    const int64_t tokens = texts_ * task_.prompt_tokens, rows = std::min(tokens, kPromptRows);
    const double forwards = static_cast<double>(tokens) / static_cast<double>(rows);
    const GenerationForward forward{.rows = rows, .texts = texts_, .forwards = forwards};
    const std::vector<ForwardTime> stages = time_.stages(forward);
    const auto slowest = std::ranges::max_element(stages, {}, &ForwardTime::total);
    ForwardTime all = forwards * *slowest;
    for (auto stage = stages.begin(); stage != stages.end(); ++stage)
      if (stage != slowest) all += *stage;
    all.compute += time_.head(texts_, forward);
    return all;
  }

  /// A token of each text, all of them in one batch that passes the stages.
  ForwardTime token() const {
    ForwardTime all;
    for (const ForwardTime& stage : token_stages(texts_)) all += stage;
    return all;
  }

  /// The texts in as many micro-batches as stages: each stage processes one of them at any time.
  std::optional<double> pipelined_token() const {
    if (degrees_.pp == 1 || texts_ < degrees_.pp) return std::nullopt;
    const std::vector<ForwardTime> stages = token_stages(parts_of(texts_, degrees_.pp));
    return static_cast<double>(degrees_.pp) *
           std::ranges::max_element(stages, {}, &ForwardTime::total)->total();
  }

 private:
  /// A token of each of `texts` texts, half of whose new tokens are generated.
  std::vector<ForwardTime> token_stages(int64_t texts) const {
    const GenerationForward forward{.rows = texts, .cached_keys = task_.prompt_tokens + task_.new_tokens / 2};
    std::vector<ForwardTime> stages = time_.stages(forward);
    stages.back().compute += time_.head(texts, forward);
    stages.back().pipeline += time_.ids(texts);
    return stages;
  }

  int64_t kv_heads() const {
    return config::make_layout(task_.config, static_cast<int>(degrees_.tp)).kv_heads.range(0).size();
  }

  /// The most of the blocks of each kind.
  int64_t buffers(const base::Range& blocks) const {
    std::array<bool, 2> is_counted{};  // of blocks without and with experts
    int64_t most = 0;
    for (int64_t layer = blocks.begin; layer < blocks.end; ++layer) {
      const bool has_experts = task_.config.has_experts(layer);
      if (std::exchange(is_counted[has_experts ? 1 : 0], true)) continue;
      Generation generation = forward_of(blocks);
      if (!has_experts) generation.config = without_experts(task_.config, layer);
      const GenerationPeak peak = generation_peak(generation, /*rank=*/0);
      most = std::max(most, peak.private_bytes() + peak.symmetric_heap_bytes());
    }
    return most;
  }

  /// The largest forward of a stage, without weights and caches.
  Generation forward_of(const base::Range& blocks) const {
    Generation generation;
    generation.config = task_.config;
    generation.tp = static_cast<int>(degrees_.tp);
    generation.ep = degrees_.ep;
    generation.element_bytes = task_.element_bytes;
    generation.rows = std::max(texts_, std::min(kPromptRows, texts_ * task_.prompt_tokens));
    generation.sequences = generation.sampled_rows = texts_;
    generation.longest_cache = task_.prompt_tokens + task_.new_tokens;
    generation.cached_tokens = 0;
    generation.has_int8_cache = task_.has_int8_cache;
    generation.weight_bytes = 0;
    generation.has_embedding = blocks.begin == 0;
    generation.has_head = blocks.end == task_.config.num_hidden_layers;
    return generation;
  }

  const InferenceTask& task_;
  InferenceDegrees degrees_;
  int64_t texts_;
  StoredWeights weights_;
  InferenceTime time_;
};

void check(const InferenceTask& task, const InferenceDegrees& degrees) {
  for (const int64_t size : {task.ranks, task.prompt_tokens, task.new_tokens, task.texts, degrees.tp,
                             degrees.replicas, degrees.pp, degrees.ep})
    TORCH_CHECK_VALUE(size >= 1, "plan: ranks, tokens, texts and degrees must be positive; got ", size,
                      " [SW0770]");
  TORCH_CHECK_VALUE(task.texts <= kMostTokens / (task.prompt_tokens + task.new_tokens),
                    "plan: all texts must have at most ", kMostTokens, " tokens; got ", task.texts, " x ",
                    task.prompt_tokens + task.new_tokens, " [SW0771]");
  TORCH_CHECK_VALUE(degrees.pp <= task.config.num_hidden_layers, "plan: pp must be at most the ",
                    task.config.num_hidden_layers, " blocks; got ", degrees.pp, " [SW0816]");
  check_expert_ranks(task.config, degrees.ep);
  TORCH_CHECK_VALUE((ExpertRanks{degrees.tp, degrees.ep}.divide(degrees.replicas)),
                    "plan: ep must divide tp, or be tp times a divisor of the replicas; got ep ", degrees.ep,
                    " with tp ", degrees.tp, " and ", degrees.replicas, " replicas [SW0817]");
}

}  // namespace

ForwardTime& ForwardTime::operator+=(const ForwardTime& more) {
  compute += more.compute;
  tensor_parallel += more.tensor_parallel;
  expert_parallel += more.expert_parallel;
  pipeline += more.pipeline;
  return *this;
}

double InferencePlan::seconds_per_token() const {
  return pipelined_token ? std::min(*pipelined_token, token.total()) : token.total();
}

int64_t weight_bytes(const config::Config& config, int64_t tp, int64_t element_bytes) {
  return StoredWeights(config, {.tp = tp}, element_bytes).of_stage({0, config.num_hidden_layers});
}

InferencePlan evaluate(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine) {
  check(task, degrees);
  const Replica replica(task, degrees, machine);
  InferencePlan plan;
  plan.degrees = degrees;
  const base::Split stages = stages_of(task.config, degrees.pp);
  for (int stage = 0; stage < stages.ranks(); ++stage) {
    const InferenceMemory memory = replica.memory(stages.range(stage));
    if (memory.total() <= plan.memory.total()) continue;
    plan.memory = memory;
    plan.peak_stage = stage;
  }
  plan.prompts = replica.prompts();
  plan.token = replica.token();
  plan.pipelined_token = replica.pipelined_token();
  return plan;
}

}  // namespace shardwise::plan
