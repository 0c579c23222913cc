#include "shardwise/cli/auto_generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/cli/units.h"
#include "shardwise/config/layout.h"

namespace shardwise::cli {
namespace {

using plan::InferencePlan;

std::string next_of(const plan::InferenceSearchResult& found, int64_t new_tokens) {
  if (found.plans.size() < 2) return no_next_text(found.refused.size());
  const InferencePlan &first = found.plans[0], &second = found.plans[1];
  const auto collectives_of = [&](const InferencePlan& plan) {
    return plan.prompts.tensor_parallel + static_cast<double>(new_tokens - 1) * plan.token.tensor_parallel;
  };
  const double communication = collectives_of(second) - collectives_of(first),
               more = second.seconds(new_tokens) - first.seconds(new_tokens);
  return next_text(fmt::format("tp {}", second.degrees.tp), second.seconds(new_tokens), more,
                   more - communication, communication);
}

std::vector<int64_t> ranks_to_compare(const config::Config& config, std::optional<int64_t> pinned) {
  if (!pinned) return plan::ranks_to_compare(std::min(most_ranks_of_choice(), config.num_attention_heads));
  config::check_ranks("generate", config, *pinned);
  return {*pinned};
}

}  // namespace

int64_t chosen_ranks(const plan::InferenceTask& task, std::optional<int64_t> pinned,
                     const AutoOptions& automatic) {
  const plan::Host host = host_of("generate", ranks_to_compare(task.config, pinned), automatic);
  const plan::InferenceSearchResult found = plan::search_host(task, host);
  if (found.plans.empty()) {
    std::vector<TooLarge> all;
    for (const plan::RefusedInference& refused : found.refused)
      all.push_back({fmt::format("tp {}", refused.degrees.tp), refused.degrees.tp, refused.needed_bytes});
    throw_too_large("generate", host, all);
  }
  const InferencePlan& best = found.plans.front();
  base::log_info(fmt::format("generate: --auto chooses tp {}: planned {} for {} text{}, {} a rank{}",
                             best.degrees.tp, in_seconds(best.seconds(task.new_tokens)), task.texts,
                             task.texts == 1 ? "" : "s", in_megabytes(best.memory.total()),
                             next_of(found, task.new_tokens)));
  return best.degrees.tp;
}

}  // namespace shardwise::cli
