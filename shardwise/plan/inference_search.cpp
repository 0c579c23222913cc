#include "shardwise/plan/inference_search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/plan/divisors.h"
#include "shardwise/plan/routed_experts.h"

namespace shardwise::plan {
namespace {

/// Returns why the split cannot be used at all, or an empty text.
std::string refusal_of(const InferenceTask& task, const InferenceDegrees& degrees) {
  const int64_t heads = task.config.num_attention_heads, blocks = task.config.num_hidden_layers;
  if (degrees.tp > heads) return fmt::format("tp {} is more than the {} query heads", degrees.tp, heads);
  if (degrees.pp > blocks) return fmt::format("pp {} is more than the {} blocks", degrees.pp, blocks);
  if (degrees.replicas > task.texts)
    return fmt::format("{} replicas are more than the {} texts", degrees.replicas, task.texts);
  if (!ExpertRanks{degrees.tp, degrees.ep}.divide(degrees.replicas))
    return fmt::format("ep {} neither divides tp {} nor is tp times a divisor of the {} replicas", degrees.ep,
                       degrees.tp, degrees.replicas);
  return "";
}

std::string refusal_of(const InferencePlan& plan, int64_t usable) {
  const InferenceMemory& memory = plan.memory;
  const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  const std::string rank =
      plan.degrees.pp == 1 ? "a rank" : fmt::format("a rank of stage {}", plan.peak_stage);
  return fmt::format("{} needs {:.1f} GB of {:.1f} (weights {:.1f}, cache {:.1f}, buffers {:.1f})", rank,
                     gb(memory.total()), gb(usable), gb(memory.weights), gb(memory.cache),
                     gb(memory.buffers));
}

/// Returns the numbers of ranks that experts are tried over: one without experts.
std::vector<int64_t> expert_ranks_to_try(const InferenceTask& task, const InferenceDegrees& degrees,
                                         const InferencePins& pins) {
  if (pins.ep) return {*pins.ep};
  if (!task.config.experts) return {1};
  std::vector<int64_t> possible;
  for (const int64_t ep : divisors(degrees.tp * degrees.replicas))
    if (ep <= task.config.experts->count && ExpertRanks{degrees.tp, ep}.divide(degrees.replicas))
      possible.push_back(ep);
  return possible;
}

void check(const InferenceTask& task, const InferencePins& pins) {
  const int64_t tp = pins.tp.value_or(1), pp = pins.pp.value_or(1);
  TORCH_CHECK_VALUE(tp >= 1 && pp >= 1 && task.ranks % (tp * pp) == 0, "plan: tp times pp must divide the ",
                    task.ranks, " ranks; got tp ", tp, " and pp ", pp, " [SW0772]");
  check_expert_ranks(task.config, pins.ep.value_or(1));
}

void try_split(const InferenceTask& task, const Machine& machine, const InferenceDegrees& degrees,
               int64_t usable, InferenceSearchResult& result) {
  if (const std::string reason = refusal_of(task, degrees); !reason.empty()) {
    result.refused.push_back({degrees, reason});
    return;
  }
  const InferencePlan plan = evaluate(task, degrees, machine);
  if (plan.memory.total() > usable) {
    result.refused.push_back({degrees, refusal_of(plan, usable), plan.memory.total()});
  } else {
    result.plans.push_back(plan);
  }
}

}  // namespace

InferenceSearchResult search(const InferenceTask& task, const Machine& machine, const InferencePins& pins,
                             std::optional<int64_t> memory_cap) {
  const int64_t usable = machine.usable_bytes(memory_cap);
  check(task, pins);
  InferenceSearchResult result;
  for (const int64_t tp : divisors(task.ranks, pins.tp)) {
    for (const int64_t pp : divisors(task.ranks / tp, pins.pp)) {
      InferenceDegrees degrees{.tp = tp, .replicas = task.ranks / tp / pp, .pp = pp};
      for (const int64_t ep : expert_ranks_to_try(task, degrees, pins)) {
        degrees.ep = ep;
        try_split(task, machine, degrees, usable, result);
      }
    }
  }
  std::ranges::stable_sort(result.plans, {},
                           [&](const InferencePlan& plan) { return plan.seconds(task.new_tokens); });
  return result;
}

}  // namespace shardwise::plan
