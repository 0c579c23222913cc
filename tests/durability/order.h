// The order of system calls that makes a file durable before its name, and its replacement before its
// removal.
#pragma once
#include <string>
#include <vector>

#include "tests/durability/disk.h"
#include "tests/durability/recording.h"

namespace shardwise::testing {

/// Returns whether a path is, or is in, a temporary file or directory, or is a lock: not what a user reads.
bool is_internal(const std::string& path);

/// Checks operations on a tree that was `before`: nothing with a final name is changed in place; what gets a
/// final name is durable; `latest` is replaced when its target has a durable name; nothing is removed that a
/// crash could bring back under its final name or that a durable `latest` points to; everything with a final
/// name is durable before the next save and at the end. Returns a line per violation.
std::vector<std::string> order_violations(const Tree& before, const Operations& operations);

}  // namespace shardwise::testing
