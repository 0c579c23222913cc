// What `shardwise plan` prints for its flags: also the interface of the planner's page (tools/planner).
#pragma once
#include <string>

#include "shardwise/cli/plan_options.h"

namespace shardwise::cli {

struct PlanOutput {
  std::string text;
  int exit_code;
};

/// Returns the output and the exit code of the command. Errors: c10::ValueError naming the flag and its rule.
PlanOutput plan_output(const PlanOptions& options);

}  // namespace shardwise::cli
