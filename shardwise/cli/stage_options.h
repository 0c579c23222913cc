// The flags of commands whose model may be split over pipeline stages.
#pragma once
#include <optional>
#include <string>

#include "shardwise/cli/flags.h"
#include "shardwise/config/stages.h"

namespace shardwise::cli {

struct StageOptions {
  int64_t pp = 1;
  std::optional<std::string> layers;
};

/// Returns the number of ranks of all stages; the largest int64_t if that overflows.
int64_t ranks_of(const StageOptions& options, int64_t tp);

/// Adds --pp and --pp-layers. `at_once`: what stages process at once, such as "sequences".
void add_stage_flags(Flags& flags, StageOptions& options, const std::string& at_once);

/// Returns how `layers` layers are dealt to the stages.
/// Errors: c10::ValueError, beginning with `command`, if that is impossible.
config::Stages stages_of(const std::string& command, const StageOptions& options, int64_t layers);

}  // namespace shardwise::cli
