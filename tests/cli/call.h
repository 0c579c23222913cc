// Runs the program in this process.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/cli/program.h"

namespace shardwise::cli {

/// The exit code, and what the program printed to standard output and standard error, without the codes of
/// errors.
struct Outcome {
  int code;
  std::string output, errors;
};

/// Runs the program; `argv` does not include the program's name.
inline Outcome call(std::vector<std::string> argv) {
  argv.insert(argv.begin(), "shardwise");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_program(argv);
  return {code, ::testing::internal::GetCapturedStdout(),
          base::without_code(::testing::internal::GetCapturedStderr())};
}

}  // namespace shardwise::cli
