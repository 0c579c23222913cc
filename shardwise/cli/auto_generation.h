// The choice of `generate --auto`: the fastest number of ranks.
#pragma once
#include <optional>

#include "shardwise/cli/auto_host.h"
#include "shardwise/plan/inference_plan.h"

namespace shardwise::cli {

/// Returns the number of ranks, `pinned` or the fastest that fits, and logs it. Errors: c10::ValueError if
/// nothing fits; those of host_of and config::check_ranks.
int64_t chosen_ranks(const plan::InferenceTask& task, std::optional<int64_t> pinned,
                     const AutoOptions& automatic);

}  // namespace shardwise::cli
