// Combines the ranks' results of a check.
#pragma once
#include <string>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Returns `passed` if `error` is empty on every rank, or else the failed check with the first rank's error.
/// Collective. Cost: that of comm::first_text.
Check verdict_of_all_ranks(const Check& passed, const std::string& error, const comm::Group& group);

}  // namespace shardwise::doctor
