// A machine in a JSON file: one that `shardwise bench machine` measured, or one that a user describes.
#pragma once
#include <string>

#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// Reads a machine (docs/cli.md has the fields). Errors: c10::ValueError naming file, field and rule.
Machine read_machine(const std::string& path);

/// Returns the machine as read_machine reads it, with one source for all figures: that of its memory.
std::string machine_text(const Machine& machine);

}  // namespace shardwise::plan
