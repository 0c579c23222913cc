// Runs a program and returns the changes that its processes made to one directory tree.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tests/durability/operation.h"

namespace shardwise::testing {

using Operations = std::vector<Operation>;

/// Runs `argv` with the recorder preloaded and expects it to succeed. Returns the changes of `tree`, in
/// order.
Operations record(const std::vector<std::string>& argv, const std::string& tree);

/// Returns a line about an operation, for the messages of tests.
std::string text_of(const Operation& operation);

}  // namespace shardwise::testing
