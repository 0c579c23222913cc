// Expects a call to end with a CommError.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::testing {

/// Returns the error of `call`, and its message in `line`.
inline base::CommError::Where failure_of(const std::function<void()>& call, std::string& line) {
  try {
    call();
    ADD_FAILURE() << "no error";
    return {};
  } catch (const base::CommError& error) {
    line = base::one_line(error);
    return error.where();
  }
}

}  // namespace shardwise::testing
