// `shardwise plan --learn`: corrects a measured machine by the reports of runs on it.
#pragma once
#include "shardwise/cli/plan_options.h"

namespace shardwise::cli {

/// Reads the reports of --learn, which `shardwise train --report` wrote, writes the corrected machine of
/// --machine to --out, and prints the factors. Errors: c10::ValueError for another flag beside these, reports
/// that do not have what is needed, and runs of another machine; base::FileError.
int learn_from_runs(const PlanOptions& options, const Flags& flags);

}  // namespace shardwise::cli
