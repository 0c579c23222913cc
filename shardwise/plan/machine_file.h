// A machine in a JSON file: one that `shardwise bench machine` measured, or one that a user describes.
#pragma once
#include <string>

#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// Returns the machine that `text` describes (docs/cli.md has the fields). Errors: c10::ValueError beginning
/// with `where`, naming field and rule.
Machine parse_machine(const std::string& text, const std::string& where);

/// Reads a machine from a file. Errors: as parse_machine's, naming the file; if it cannot be read.
Machine read_machine(const std::string& path);

/// Returns the machine as read_machine reads it, with one source for all figures: that of its memory.
std::string machine_text(const Machine& machine);

}  // namespace shardwise::plan
