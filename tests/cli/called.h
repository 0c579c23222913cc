// A call of the program in this process.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/cli/program.h"

namespace shardwise::cli {

/// What it prints and complains of.
struct Said {
  int code;
  std::string output, errors;
};

/// `argv` without the program's own name.
inline Said call(std::vector<std::string> argv) {
  argv.insert(argv.begin(), "shardwise");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_program(argv);
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace shardwise::cli
