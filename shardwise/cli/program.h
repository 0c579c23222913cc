// The program without main: runs the command and converts errors to one line and an exit code.
#pragma once
#include <exception>
#include <string>
#include <vector>

namespace shardwise::cli {

/// Runs `argv` (the program's name first) and returns the exit code: 2 for a usage error, 1 for a failure at
/// run time, 3 if `doctor` has found a bug, and 128 plus the signal's number if a signal ended the command.
/// Every error is one line on standard error.
int run_program(const std::vector<std::string>& argv);

/// Prints the error as one line on standard error.
void print_error(const std::exception& error);

}  // namespace shardwise::cli
