// `shardwise plan --html FILE`: the planner's page, which `make planner` builds (tools/planner), with the
// flags of the command as what it shows first.
#pragma once
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/cli/plan_options.h"

namespace shardwise::cli {

/// Returns `page` with `given`, and the texts of the files that they name, as what it shows first; unchanged
/// if no flag but --html is given. Errors: c10::ValueError if `page` is not a planner's page of this version.
std::string page_with(const std::string& page, const PlanOptions& options,
                      const std::vector<GivenFlag>& given);

/// Writes the page to --html, and returns the exit code. Errors: c10::ValueError if a flag is given that
/// changes only what is printed, if the plans of the flags cannot be computed, or if the page was not built;
/// base::FileError.
int write_page(const PlanOptions& options, const std::vector<GivenFlag>& given);

}  // namespace shardwise::cli
