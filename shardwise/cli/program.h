// The whole program but for main: picks the command, and turns errors into one line and an exit code.
#pragma once
#include <exception>
#include <string>
#include <vector>

namespace shardwise::cli {

/// Runs `argv` (the program's name first) and returns the exit code: 2 for the caller's mistakes, 1 for what
/// failed at run time, 3 when `doctor` has found a bug, 128 plus the signal's number when ended by one. Both
/// kinds of error are one line on standard error.
int run_program(const std::vector<std::string>& argv);

/// The error's one line on standard error.
void tell(const std::exception& error);

}  // namespace shardwise::cli
