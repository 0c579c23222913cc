#include "shardwise/plan/inference_search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

namespace shardwise::plan {
namespace {

/// Returns why the split cannot be used at all, or an empty text.
std::string refusal_of(const InferenceTask& task, const InferenceDegrees& degrees) {
  const int64_t heads = task.config.num_attention_heads;
  if (degrees.tp > heads) return fmt::format("tp {} is more than the {} query heads", degrees.tp, heads);
  if (degrees.replicas > task.texts)
    return fmt::format("{} replicas are more than the {} texts", degrees.replicas, task.texts);
  return "";
}

std::string refusal_of(const InferenceMemory& memory, int64_t usable) {
  const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  return fmt::format("a rank needs {:.1f} GB of {:.1f} (weights {:.1f}, cache {:.1f}, buffers {:.1f})",
                     gb(memory.total()), gb(usable), gb(memory.weights), gb(memory.cache),
                     gb(memory.buffers));
}

}  // namespace

InferenceSearchResult search(const InferenceTask& task, const Machine& machine, std::optional<int64_t> tp,
                             std::optional<int64_t> memory_cap) {
  const int64_t usable = machine.usable_bytes(memory_cap);
  TORCH_CHECK_VALUE(!tp || (*tp >= 1 && task.ranks % *tp == 0), "plan: tp must divide the ", task.ranks,
                    " ranks; got ", tp.value_or(0), " [SW0772]");
  InferenceSearchResult result;
  for (int64_t degree = tp.value_or(1); degree <= tp.value_or(task.ranks); ++degree) {
    if (task.ranks % degree != 0) continue;
    const InferenceDegrees degrees{degree, task.ranks / degree};
    if (const std::string reason = refusal_of(task, degrees); !reason.empty()) {
      result.refused.push_back({degrees, reason});
      continue;
    }
    const InferencePlan plan = evaluate(task, degrees, machine);
    if (plan.memory.total() > usable) {
      result.refused.push_back({degrees, refusal_of(plan.memory, usable), plan.memory.total()});
    } else {
      result.plans.push_back(plan);
    }
  }
  std::ranges::stable_sort(result.plans, {},
                           [&](const InferencePlan& plan) { return plan.seconds(task.new_tokens); });
  return result;
}

}  // namespace shardwise::plan
